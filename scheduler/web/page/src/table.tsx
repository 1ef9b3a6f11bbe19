// A table that the server pages.
import type { ComponentChildren } from "preact";
import { usePageKeys } from "./store";
import { count } from "./format";

export interface Field<Row> {
  name: string;
  cell: (row: Row) => ComponentChildren;
  number?: boolean;
  sort?: string; // the server's name of this order
  hint?: string;
  grow?: boolean;
}

interface Props<Row> {
  fields: Field<Row>[];
  rows: Row[];
  rowKey: (row: Row) => string;
  rowClass?: (row: Row) => string;
  sorted?: string;
  onSort?: (sort: string) => void;
}

export function Rows<Row>(props: Props<Row>) {
  return (
    <div class="scroll">
      <table>
        <thead>
          <tr>
            {props.fields.map((field) => (
              <th key={field.name} scope="col" class={`${field.number ? "number" : ""}${field.grow ? " grow" : ""}`} title={field.hint}>
                {field.sort && props.onSort ? (
                  <button type="button" onClick={() => props.onSort!(field.sort!)} aria-pressed={props.sorted === field.sort}>
                    {field.name}
                    <span aria-hidden="true">{props.sorted === field.sort ? " ▾" : ""}</span>
                  </button>
                ) : (
                  field.name
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {props.rows.map((row) => (
            <tr key={props.rowKey(row)} class={props.rowClass?.(row) ?? ""}>
              {props.fields.map((field) => (
                <td key={field.name} class={`${field.number ? "number" : ""}${field.grow ? " grow" : ""}`}>
                  {field.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function Pager(props: { offset: number; limit: number; total: number | null; shown: number; more?: boolean; go: (offset: number) => void }) {
  const back = props.offset > 0;
  const on = props.more ?? (props.total !== null && props.offset + props.shown < props.total);
  const left = (): void => {
    if (back) props.go(Math.max(0, props.offset - props.limit));
  };
  const right = (): void => {
    if (on) props.go(props.offset + props.limit);
  };
  usePageKeys({ left, right });
  if (!back && !on) return null;
  return (
    <nav class="pager" aria-label="Pages of the table">
      <button type="button" disabled={!back} onClick={left}>
        ← Back
      </button>
      <span>
        {count(props.offset + 1)} to {count(props.offset + props.shown)}
        {props.total !== null && ` of ${count(props.total)}`}
      </span>
      <button type="button" disabled={!on} onClick={right}>
        Next →
      </button>
    </nav>
  );
}
