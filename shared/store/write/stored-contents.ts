/** Tracks stored content, to find content without a resource (crashed uploads, `$expunge`). `place` is the storage. */

import { typeNumber } from '../../fhir/definitions.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import {
  deleteLeased,
  isFree,
  type Lease,
  type LeaseTable,
  leaseRow,
  releaseLeased,
} from '../../postgres/leases.ts'
import type { Connection } from '../../postgres/statement.ts'
import { WELL_FORMED_CONTENT } from '../rows/rows.ts'

/** Longer than any upload. */
const DOUBT = '1 day'

/** A worker leases content to check whether a resource names it. */
const CONTENTS: LeaseTable = {
  name: 'stored_content',
  key: { key: 'text' },
  token: 'takes',
  expiresAt: 'due',
  leaseMs: 300_000,
}

/** Called before content is stored: it is checked in a day unless kept. */
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

/** Leaves content that a sweep checks, or whose resource is expunged, in doubt. */
export async function keepContent(connection: Connection, key: string): Promise<void> {
  await connection.query({
    name: 'content-keep',
    text: 'update stored_content set due = null where key = $1 and takes = 0',
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

interface LeasedContent {
  readonly key: string
  readonly token: number
  readonly isUsed: boolean
}

const contentLease = ({ key, token }: LeasedContent): Lease => ({ key: [key], token })

const LEASED = `update stored_content c set ${leaseRow(CONTENTS, 'c')}
  where key in (select key from stored_content x
    where x.due is not null and ${isFree(CONTENTS, 'x')} and x.place = $1
    order by x.due limit $2 for update skip locked)
  returning c.key, c.added, c.takes`

/** Only versions of the days after an upload can name its content. */
export async function leaseContents(
  connection: Connection,
  place: Buffer,
  count: number,
): Promise<readonly LeasedContent[]> {
  return connection.query<LeasedContent>({
    name: 'content-lease',
    text: `with c as (${LEASED})
      select c.key, c.takes as token, exists (
        select 1 from tenant t join version v on v.project = t.project and v.type = $3
        where v.lu >= date_trunc('milliseconds', c.added) and v.lu < c.added + 2 * interval '${DOUBT}'
          and position(c.key in v.content) > 0) as "isUsed"
      from c`,
    values: [place, count, typeNumber('Binary')],
    inSteps: async ({ query }) => {
      const due = await query<{ key: string; added: Date; takes: number }>({
        text: LEASED,
        values: [place, count],
      })
      const used = await query<{ key: string }>({
        text: `select distinct c.key from ${dialect.unnest('$1::text[]', '$2::timestamptz[]')} as c(key, added)
          join version v on v.type = $3 and v.lu >= date_trunc('milliseconds', c.added) and v.lu < c.added + 2 * interval '${DOUBT}'
            and position(c.key in v.content) > 0`,
        values: [due.map(({ key }) => key), due.map(({ added }) => added), typeNumber('Binary')],
      })
      return due.map(({ key, takes: token }) => {
        return { key, token, isUsed: used.some((one) => one.key === key) }
      })
    },
  })
}

/** False when the lease was lost: the resource may be expunged by now. */
export async function keepLeasedContent(
  connection: Connection,
  content: LeasedContent,
): Promise<boolean> {
  return await releaseLeased(connection, CONTENTS, contentLease(content), {
    name: 'content-leased-keep',
    set: 'due = null',
  })
}

/** False when the lease was lost. */
export async function forgetLeasedContent(
  connection: Connection,
  content: LeasedContent,
): Promise<boolean> {
  return await deleteLeased(connection, CONTENTS, contentLease(content))
}

const STORED_URL = `${WELL_FORMED_CONTENT}::json ->> 'url'`

/** Overrides a concurrent sweep. */
export const CONDEMN_CONTENT_SQL = `f as (update stored_content set due = clock_timestamp(), takes = takes + 1 where key in (
    select split_part(substr(${STORED_URL}, length('storage:') + 1), '?', 1) from v
    where starts_with(${STORED_URL}, 'storage:')))`
