// Checkpoints: what was saved, and how to go on from it.
import { useState } from "preact/hooks";
import { bytes, day, duration } from "../format";
import { usePolled } from "../store";
import { Pager, Rows, type Field } from "../table";
import type { Checkpoint, Table } from "../types";
import { Card, Command, Empty, Loaded, Pill } from "../ui";

const LIMIT = 50;

const FIELDS: Field<Checkpoint>[] = [
  { name: "step", cell: (row) => <b>{row.step}</b>, number: true },
  { name: "saved", cell: (row) => day(row.t) },
  { name: "size", cell: (row) => bytes(row.bytes), number: true },
  { name: "took", cell: (row) => duration(row.us), number: true },
  { name: "ranks", cell: (row) => row.ranks, number: true, hint: "how many ranks reported the save" },
  {
    name: "folder",
    cell: (row) => (
      <span class="path">
        {row.path} {row.latest && <Pill tone="good">newest</Pill>}
      </span>
    ),
    grow: true,
  },
  { name: "check", cell: (row) => <Command text={row.verify} /> },
];

export function CheckpointsPage() {
  const [offset, go] = useState(0);
  const polled = usePolled<Table<Checkpoint>>("checkpoints", { offset, limit: LIMIT });
  return (
    <Loaded polled={polled}>
      {(data) => {
        const newest = data.rows.find((row) => row.latest) ?? data.rows[0];
        if (!newest)
          return (
            <Card title="Checkpoints">
              <Empty title="This run has saved no checkpoint">
                <code>shoal.checkpoint.save(folder, model, optimizer)</code> saves one, and it appears here.
              </Empty>
            </Card>
          );
        return (
          <>
            {offset === 0 && (
              <Card title={`Go on from step ${newest.step}`}>
                <p>In the training script, before its first step:</p>
                <Command text={newest.load} />
              </Card>
            )}
            <Card title="Checkpoints" aside="the newest first" flush>
              <Rows fields={FIELDS} rows={data.rows} rowKey={(row) => `${row.t} ${row.path}`} />
              <Pager offset={offset} limit={LIMIT} total={data.total} shown={data.rows.length} go={go} />
            </Card>
          </>
        );
      }}
    </Loaded>
  );
}
