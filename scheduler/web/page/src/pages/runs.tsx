// Runs: those that the server knows.
import { ago } from "../format";
import { amend, link, route, source, usePolled } from "../store";
import { Pager, Rows, type Field } from "../table";
import type { RunRow, Table } from "../types";
import { Card, Empty, Loaded, Pill } from "../ui";

const LIMIT = 50;
const TONES: Record<string, string> = { running: "good", lost: "bad", failed: "bad" };

const FIELDS: Field<RunRow>[] = [
  { name: "run", cell: (row) => <a href={link("run", {}, row.name)}>{row.name}</a> },
  { name: "state", cell: (row) => <Pill tone={TONES[row.state] ?? "quiet"}>{row.state}</Pill> },
  { name: "step", cell: (row) => row.step || "–", number: true },
  { name: "ranks", cell: (row) => row.world || "–", number: true },
  { name: "last row", cell: (row) => (row.last > 0 ? ago(Date.now() * 1000 - row.last) : "–"), number: true },
  { name: "verdict", cell: (row) => row.sentence, grow: true },
];

export function RunsPage() {
  const offset = Number(route.value.query.get("offset") ?? "") || 0;
  const polled = usePolled<Table<RunRow>>("runs", { offset }, undefined, () => source.runs({ offset, limit: LIMIT }), 5000);
  return (
    <Card title="Runs" aside="the newest first" flush>
      <Loaded polled={polled}>
        {(data) =>
          data.rows.length === 0 ? (
            <Empty title="No run has been recorded yet">
              <code>shoal run train.py</code> records one; so does <code>SHOAL_RUN_FOLDER=DIR</code> with other launchers.
            </Empty>
          ) : (
            <>
              <Rows fields={FIELDS} rows={data.rows} rowKey={(row) => row.name} />
              <Pager offset={offset} limit={LIMIT} total={data.total} shown={data.rows.length} go={(to) => amend({ offset: to || "" })} />
            </>
          )
        }
      </Loaded>
    </Card>
  );
}
