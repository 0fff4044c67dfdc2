/**
 * What is in very many compartments would be in as many blocks: a Group of 50,000 members is 5 MB, and was 250 GB of
 * an export of these.
 */

import { type Issue, issue } from '../../../errors.ts'
import { typeName } from '../../../fhir/definitions.ts'
import type { Connection } from '../../../platform/postgres/statement.ts'
import { idOf } from '../../../store/rows/content.ts'
import { typeAtPlace } from './sql.ts'

/** Copies that nobody counts the bytes of. */
const COPIES = 100
/** Of all copies of one resource. */
const COPIES_BYTES = 256 * 1024 * 1024

/** Lines that are counted by a statement, which has a time limit. */
const AT_ONCE = 4_000_000

interface Copied {
  readonly type: number
  readonly id: string
  readonly copies: number
  /** The beginning of it. */
  readonly content: string
}

/** Takes out what is too large for all its blocks. Answers what is to be told of it. */
export async function leaveOutCopies(
  connection: Connection,
  project: number,
  job: string,
): Promise<readonly Issue[]> {
  const [listed] = await connection.query<{ lines: number }>({
    text: `select coalesce(sum(cardinality(ids)), 0)::float8 as lines
      from export_compartment where job = $1`,
    values: [job],
  })
  const rounds = Math.ceil((listed?.lines ?? 0) / AT_ONCE)
  const issues: Issue[] = []
  for (let round = 0; round < rounds; round++) {
    for (const copied of await copiedOf(connection, project, job, round, rounds)) {
      issues.push(await leaveOut(connection, job, copied))
    }
  }
  return issues
}

/** Of the ids whose last byte is that of the round. */
async function copiedOf(
  connection: Connection,
  project: number,
  job: string,
  round: number,
  rounds: number,
): Promise<readonly Copied[]> {
  return connection.query<Copied>({
    text: `select c.type, c.id, c.copies::int as copies, left(v.content, 200) as content
      from (select ${typeAtPlace('c')} as type, i.id, count(*) as copies
        from export_compartment c cross join lateral unnest(c.ids) i(id)
        where c.job = $1 and get_byte(uuid_send(i.id), 15) % $3 = $4
        group by 1, 2 having count(*) > ${COPIES}) c
      cross join lateral (select v.content from version v where v.project = $2
        and v.type = c.type and v.id = c.id and v.content is not null
        order by v.ver desc limit 1) v
      where c.copies * octet_length(v.content) > ${COPIES_BYTES}`,
    values: [job, project, rounds, round],
  })
}

async function leaveOut(
  connection: Connection,
  job: string,
  { type, id, copies, content }: Copied,
): Promise<Issue> {
  await connection.query({
    text: `update export_compartment c set ids = array_remove(ids, $3)
      where job = $1 and $3 = any(ids) and ${typeAtPlace('c')} = $2`,
    values: [job, type, id],
  })
  const name = `${typeName(type)}/${idOf(content)}`
  const text = `${name} is in ${copies} compartments, and too large for their blocks`
  return issue('warning', 'too-costly', text)
}
