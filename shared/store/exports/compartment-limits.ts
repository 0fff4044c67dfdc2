/**
 * What is in very many compartments would be in as many blocks: a Group of 50,000 members is 5 MB, and was 250 GB of
 * an export of these.
 */
import type { Connection } from '../../database.ts'
import { typeName } from '../../fhir/definitions.ts'
import { type Issue, issue } from '../../fhir/outcome.ts'
import { idOf } from '../content.ts'
import { typeAtPlace } from './compartment-sql.ts'

/** Copies that nobody counts the bytes of. */
const COPIES = 100
/** Of all copies of one resource. */
const COPIES_BYTES = 256 * 1024 * 1024

/** Takes out what is too large for all its blocks. Answers what is to be told of it. */
export async function leaveOutCopies(
  connection: Connection,
  project: number,
  job: string,
): Promise<readonly Issue[]> {
  const found = await connection.query<{
    type: number
    id: string
    copies: number
    content: string
  }>({
    text: `select c.type, c.id, c.copies::int as copies, left(v.content, 200) as content
      from (select ${typeAtPlace('c')} as type, i.id, count(*) as copies
        from export_compartment c cross join lateral unnest(c.ids) i(id)
        where c.job = $1 group by 1, 2 having count(*) > ${COPIES}) c
      cross join lateral (select v.content from version v where v.project = $2
        and v.type = c.type and v.id = c.id and v.content is not null
        order by v.ver desc limit 1) v
      where c.copies * octet_length(v.content) > ${COPIES_BYTES}`,
    values: [job, project],
  })
  for (const { type, id } of found) {
    await connection.query({
      text: `update export_compartment c set ids = array_remove(ids, $3)
        where job = $1 and $3 = any(ids) and ${typeAtPlace('c')} = $2`,
      values: [job, type, id],
    })
  }
  return found.map(({ type, copies, content }) => {
    const text = `${typeName(type)}/${idOf(content)} is in ${copies} compartments, and left out of all`
    return issue('warning', 'too-costly', text)
  })
}
