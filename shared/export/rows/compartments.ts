/** Plans an export by patient. https://build.fhir.org/ig/HL7/bulk-data/export.html#bulk-data-output-file-organization */
import type { Principal } from '../../access/principal.ts'
import { type Issue, issue } from '../../core/errors.ts'
import { typeName, typeNumber } from '../../fhir/definitions.ts'
import { binder, type Connection } from '../../postgres/statement.ts'
import { keysLiteral } from '../../store/index/keys.ts'
import type { StoreContext } from '../../store/rows/context.ts'
import { contentId } from '../../store/rows/rows.ts'
import type { PlannedJob } from './jobs.ts'
import { compartmentsSql, typeAtPlace } from './list.ts'
import {
  compartmentKeys,
  leftOut,
  MEMBERS_AT_ONCE,
  type MemberPage,
  memberPages,
  membersSql,
} from './members.ts'
import { addProvenance, targetTypes } from './provenance.ts'
import { readRowsAt, type TypesAt, typesWritten } from './scope.ts'
import { changedPages, changesSql, rowTestsSql, type Selection, selectType } from './select.ts'

const PATIENT = typeNumber('Patient')
/** Approximate rows per part: less than half a file. A larger patient starts its own part; no patient spans parts. */
const PART_ROWS = 40_000
const ONLY_PATIENTS = issue(
  'information',
  'informational',
  'What is in the compartment of no patient is left out',
)

/** Returns the row id of each part's last patient, and issues about omitted resources. */
export async function listCompartments(
  store: StoreContext,
  principal: Principal,
  job: PlannedJob,
  { types, at }: TypesAt,
): Promise<{ readonly ends: readonly string[]; readonly issues: readonly Issue[] }> {
  const { connection } = store
  const { number } = principal.project
  const isAbout = types.includes('Provenance')
  const listed = isAbout ? [...targetTypes(principal, job.input), 'Provenance'] : types
  const selections = new Map<string, Selection>()
  for (const type of await typesWritten(connection, number, { types: listed, at }, true)) {
    const selection = await selectType(store, principal, type, job)
    const reach = type === 'Provenance' ? 'all' : 'listed'
    if (selection !== undefined) selections.set(type, { ...selection, reach })
  }
  const about = selections.get('Provenance')
  selections.delete('Provenance')
  const { level, patients } = job.input
  const isAll = level === 'system' || (level === 'patient' && !patients)
  let missing = 0
  let others = 0
  const pages = isAll
    ? allPatients(store, principal, at)
    : memberPages(store, principal, job.input, at)
  for await (const page of pages) {
    if (page.type === 'Patient') {
      missing += page.missing
      await listPage(store, principal, job, { ...page, selections: [...selections.values()], at })
    } else others += page.ids.length
  }
  // Current rows first: a concurrently changed row is then found by at least one of the two queries.
  const changed = { types: [...selections.keys()], at }
  for (const type of await typesWritten(connection, number, changed, false)) {
    const selection = selections.get(type)
    if (selection !== undefined) await listChanged(store, job.id, selection)
  }
  if (about !== undefined) await addProvenance(store, job, about, [...selections.keys()])
  if (types.every((type) => type === 'Provenance')) await keepProvenance(connection, job.id)
  const tooLarge = await leaveOutCopies(connection, number, job.id)
  return {
    ends: await partEnds(connection, job.id, PART_ROWS),
    issues: [
      ...leftOut(missing, 'not there or may not be read'),
      ...leftOut(others, 'no patients, and in no compartment'),
      ...tooLarge,
      ...(job.input.level === 'system' ? [ONLY_PATIENTS] : []),
    ],
  }
}

/** Targets were listed only to find their Provenance. */
async function keepProvenance(connection: Connection, job: string): Promise<void> {
  await connection.query({
    text: 'delete from export_compartment where job = $1 and place <> $2',
    values: [job, typeNumber('Provenance')],
  })
}

async function* allPatients(
  store: StoreContext,
  principal: Principal,
  at: Date,
): AsyncGenerator<MemberPage> {
  const next = `and type = ${PATIENT} and ($2::uuid is null or id > $2)`
  const page = `order by id limit ${MEMBERS_AT_ONCE}`
  let after: string | undefined
  do {
    const rows: readonly { id: string }[] = await store.connection.query<{ id: string }>({
      name: 'export-patients',
      text: `(select id from resource where project = $1 ${next} ${page})
        union (select id from version where project = $1 ${next} and lu > $3 and content is null ${page})
        ${page}`,
      values: [principal.project.number, after ?? null, at],
    })
    after = rows.length < MEMBERS_AT_ONCE ? undefined : rows.at(-1)?.id
    const wanted = rows.map(({ id }) => id)
    const found = await readRowsAt(store, principal, 'Patient', { wanted, at })
    yield { type: 'Patient', rows: found, ids: [], missing: 0 }
  } while (after !== undefined)
}

async function listPage(
  store: StoreContext,
  principal: Principal,
  { id, input }: PlannedJob,
  {
    selections,
    at,
    ...page
  }: MemberPage & { readonly selections: readonly Selection[]; readonly at: Date },
): Promise<void> {
  const project = principal.project.number
  const held = compartmentKeys(store, principal, page.rows)
  const { values, bind } = binder()
  const job = bind(id, 'uuid')
  const [ruling, tests] = rowTestsSql(selections, bind)
  const types = selections.map(({ scene: scope }) => typeNumber(scope.type))
  const since = input.since === undefined ? '' : `and r.lu > ${bind(input.since, 'timestamptz')}`
  const patients = page.rows.map(({ id }) => id)
  const found = `select p.id as patient, r.id, ruling, ${placeSql('r', 'p.id')} as place
    from unnest(${bind(keysLiteral(held), 'bigint[]')}, ${bind(patients, 'uuid[]')}) p(key, id)
    cross join lateral (select r.type, r.id, ${ruling} as ruling from resource r
      where r.keys @> array[p.key] and (r.project = ${bind(project, 'int')}) is true
        and (r.type = any(${bind(types, 'smallint[]')})) is true
        and r.lu <= ${bind(at, 'timestamptz')} ${since} and ${tests} offset 0) r`
  await store.connection.query({
    text: `with m as (${membersSql(store, principal, { ...page, job }, bind)})
      ${compartmentsSql(job, found)}`,
    values,
  })
}

/** Lists resources changed since, in their former compartments. */
async function listChanged(store: StoreContext, id: string, selection: Selection): Promise<void> {
  const { project, type } = selection.scene
  for await (const rows of changedPages(store, selection)) {
    const { values, bind } = binder()
    const job = bind(id, 'uuid')
    const found = `select m.id as patient, v.id, v.ruling, ${placeSql('v', 'm.id')} as place
      from (select v.type, v.id, e.ruling, c ->> 'reference' as reference
        from ${changesSql(rows, bind)} e(id, ver, ruling)
        join version v on v.project = ${bind(project, 'int')}
          and v.type = ${bind(typeNumber(type), 'smallint')} and v.id = e.id and v.ver = e.ver
        cross join lateral jsonb_array_elements(('{' || v.meta_ext || '}')::jsonb -> 'compartment') c
        offset 0) v
      join export_member m on m.job = ${job} and m.reference = v.reference and m.id is not null`
    await store.connection.query({ text: compartmentsSql(job, found), values })
  }
}

/** SQL: position of a row in a compartment: 0 for its Patient, otherwise its type number. */
function placeSql(table: string, patient: string): string {
  return `case when ${table}.type = ${PATIENT} and ${table}.id = ${patient} then 0 else ${table}.type end`
}

export async function partEnds(
  connection: Connection,
  job: string,
  size: number,
): Promise<readonly string[]> {
  const rows = await connection.query<{ patient: string }>({
    text: `select distinct on (part) patient from (
        select patient, div(sum(rows) over (order by patient) - 1, $2) as part from (
          select patient, sum(cardinality(ids)) as rows
          from export_compartment where job = $1 group by patient) p) x
      order by part, patient desc`,
    values: [job, size],
  })
  return rows.map(({ patient }) => patient)
}

/** Resources with more copies get a size check: a large Group would be copied to each of its members. */
const COPIES = 100
const COPIES_BYTES = 256 * 1024 * 1024
/** Lines counted by one statement within its time limit. */
const LINES_COUNTED = 4_000_000

interface Copied {
  readonly type: number
  readonly id: string
  readonly copies: number
  readonly content: string
}

/** Removes resources that are too large for all their compartments. Returns issues about them. */
async function leaveOutCopies(
  connection: Connection,
  project: number,
  job: string,
): Promise<readonly Issue[]> {
  const [listed] = await connection.query<{ lines: number }>({
    text: `select coalesce(sum(cardinality(ids)), 0)::float8 as lines
      from export_compartment where job = $1`,
    values: [job],
  })
  const rounds = Math.ceil((listed?.lines ?? 0) / LINES_COUNTED)
  const issues: Issue[] = []
  for (let round = 0; round < rounds; round++) {
    // Each round counts the ids that end in its own byte.
    const large = await connection.query<Copied>({
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
    for (const { type, id, copies, content } of large) {
      await connection.query({
        text: `update export_compartment c set ids = array_remove(ids, $3)
          where job = $1 and $3 = any(ids) and ${typeAtPlace('c')} = $2`,
        values: [job, type, id],
      })
      const name = `${typeName(type)}/${contentId(content)}`
      const text = `${name} is in ${copies} compartments, and too large for their blocks`
      issues.push(issue('warning', 'too-costly', text))
    }
  }
  return issues
}
