/**
 * Rows for all content in the storage, so that content without a resource is found: a crash between storing content
 * and its resource leaves some, and `$expunge` does. `place` is the storage it lies in.
 */

import { typeNumber } from '../../fhir/definitions.ts'
import type { Connection } from '../../platform/postgres/statement.ts'

/** Longer than any upload. */
const DOUBT = '1 day'

/** Before content is stored: unless it is kept, it is looked at in a day. */
export async function noteContent(
  connection: Connection,
  place: Buffer,
  key: string,
): Promise<void> {
  await connection.query({
    name: 'content-note',
    text: `insert into stored_content (key, place, due)
      values ($1, $2, clock_timestamp() + interval '${DOUBT}')`,
    values: [key, place],
  })
}

/** Its resource is stored. */
export async function keepContent(connection: Connection, key: string): Promise<void> {
  await connection.query({
    name: 'content-keep',
    text: 'update stored_content set due = null where key = $1',
    values: [key],
  })
}

export async function forgetContent(connection: Connection, key: string): Promise<void> {
  await connection.query({
    name: 'content-forget',
    text: 'delete from stored_content where key = $1',
    values: [key],
  })
}

export interface DueContent {
  readonly key: string
  /** A version names it. */
  readonly isUsed: boolean
}

/** Content to be looked at, at most `count`. Each upload is named by a version of the days after it. */
export async function dueContents(
  connection: Connection,
  place: Buffer,
  count: number,
): Promise<readonly DueContent[]> {
  return connection.query<DueContent>({
    name: 'content-due',
    text: `select c.key, exists (
        select 1 from tenant t join version v on v.project = t.project and v.type = $3
        where v.lu >= c.added and v.lu < c.added + 2 * interval '${DOUBT}'
          and position(c.key in v.content) > 0) as "isUsed"
      from stored_content c
      where c.due < clock_timestamp() and c.place = $1
      order by c.due limit $2`,
    values: [place, count, typeNumber('Binary')],
    apart: async ({ query }) => {
      const due = await query<{ key: string; added: Date }>({
        text: `select key, added from stored_content where due < clock_timestamp() and place = $1
          order by due limit $2`,
        values: [place, count],
      })
      const used = await query<{ key: string }>({
        text: `select distinct c.key from unnest($1::text[], $2::timestamptz[]) as c(key, added)
          join version v on v.type = $3 and v.lu >= c.added and v.lu < c.added + 2 * interval '${DOUBT}'
            and position(c.key in v.content) > 0`,
        values: [due.map(({ key }) => key), due.map(({ added }) => added), typeNumber('Binary')],
      })
      return due.map(({ key }) => ({ key, isUsed: used.some((one) => one.key === key) }))
    },
  })
}

/** SQL of a part that condemns the content of the deleted versions in `v`. */
export const CONDEMN = `f as (update stored_content set due = clock_timestamp() where key in (
    select split_part(substr(content::json ->> 'url', length('storage:') + 1), '?', 1) from v
    where starts_with(content::json ->> 'url', 'storage:')))`
