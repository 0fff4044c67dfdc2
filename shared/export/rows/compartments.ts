/**
 * Lists the rows of an export of named patients, a Group, or by patient, in sorted arrays by patient, type and governing
 * grant; by type, many patients share an array. A row may be in several.
 * https://build.fhir.org/ig/HL7/bulk-data/export.html#bulk-data-output-file-organization
 */
import type { Principal } from '../../access/principal.ts'
import { type Issue, issue } from '../../core/errors.ts'
import { typeName, typeNumber } from '../../fhir/definitions.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import { arrayLiteral, binder, type Connection } from '../../postgres/statement.ts'
import type { StoreContext } from '../../store/rows/context.ts'
import { contentId } from '../../store/rows/rows.ts'
import type { PlannedJob } from './jobs.ts'
import { leftOut, MEMBERS_AT_ONCE, type MemberPage, memberPages, membersSql } from './members.ts'
import { addProvenance, targetTypes } from './provenance.ts'
import { readRowsAt, type TypesAt, typesWritten } from './scope.ts'
import {
  changedPages,
  changesSql,
  compartmentsSql,
  rowTestsSql,
  type Selection,
  selectedRows,
  selectType,
  typeAtPlace,
} from './select.ts'

const PATIENT = typeNumber('Patient')
/** Approximate rows per part: less than half a file. A larger patient starts its own part; no patient spans parts. */
const PART_ROWS = 40_000
const ONLY_PATIENTS = issue(
  'information',
  'informational',
  'Resources outside all Patient compartments are left out',
)

interface CompartmentList {
  /** By patient: the last patient of each part. */
  readonly ends: readonly string[]
  /** By type: the number of rows; some may be listed twice. */
  readonly counts: ReadonlyMap<string, number>
  readonly issues: readonly Issue[]
}

/** Lists the rows to export of the patients and members of an export. Errors: 400, 403 of `_typeFilter`. */
export async function listCompartments(
  store: StoreContext,
  principal: Principal,
  job: PlannedJob,
  { types, at }: TypesAt,
): Promise<CompartmentList> {
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
  const { level, patients, organizedBy } = job.input
  const isAll = level === 'system' || (level === 'patient' && !patients)
  let missing = 0
  let others = 0
  const pages = isAll
    ? allPatients(store, principal, at)
    : memberPages(store, principal, job.input, at)
  for await (const page of pages) {
    const isPatients = page.type === 'Patient'
    const own = selections.get(page.type)
    if (isPatients || page.type === 'Group' || organizedBy === undefined) missing += page.missing
    if (isPatients) await listPatients(store, principal, job, { ...page, selections, at })
    else if (organizedBy !== undefined) others += page.ids.length
    else if (own !== undefined) await listMembers(store, job, own, page)
  }
  // Current rows first: a concurrently changed row is then found by at least one of the two queries.
  const changed = { types: [...selections.keys()], at }
  for (const type of await typesWritten(connection, number, changed, false)) {
    const selection = selections.get(type)
    if (selection !== undefined) await listChanged(store, job, selection)
  }
  if (about !== undefined) await addProvenance(store, job, about, [...selections.keys()])
  if (types.every((type) => type === 'Provenance')) await keepProvenance(connection, job.id)
  const notFound = leftOut(missing, 'not there or may not be read')
  if (organizedBy === undefined) {
    return { ends: [], counts: await countRows(connection, job.id), issues: notFound }
  }
  const tooLarge = await leaveOutCopies(connection, number, job.id)
  return {
    ends: await partEnds(connection, job.id, PART_ROWS),
    counts: new Map(),
    issues: [
      ...notFound,
      ...leftOut(others, 'no patients, and in no compartment'),
      ...tooLarge,
      ...(level === 'system' ? [ONLY_PATIENTS] : []),
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

async function listPatients(
  store: StoreContext,
  { project }: Principal,
  { id, input }: PlannedJob,
  page: MemberPage & { readonly selections: ReadonlyMap<string, Selection>; readonly at: Date },
): Promise<void> {
  const { at } = page
  const selections = [...page.selections.values()]
  const { values, bind } = binder()
  const job = bind(id, 'uuid')
  const [ruling, tests] = rowTestsSql(selections, bind)
  const types = selections.map(({ scope }) => typeNumber(scope.type))
  const since = input.since === undefined ? '' : `and r.lu > ${bind(input.since, 'timestamptz')}`
  const ids = page.rows.map((row) => row.id)
  const keys = page.rows.map(({ content }) =>
    store.keys.compartment(project.number, `Patient/${contentId(content ?? '')}`),
  )
  const bucket = input.organizedBy === undefined ? bind(ids[0] ?? null, 'uuid') : 'p.id'
  const found = `select ${bucket} as patient, r.id, ruling, ${placeSql('r', 'p.id')} as place
    from ${dialect.unnest(bind(arrayLiteral(keys), 'bigint[]'), bind(ids, 'uuid[]'))} p(key, id)
    cross join lateral (select r.type, r.id, ${ruling} as ruling from resource r
      where r.keys @> array[p.key] and ${dialect.projectEquals('r', bind(project.number, 'int'))}
        and (r.type = any(${bind(types, 'smallint[]')})) is true
        and r.lu <= ${bind(at, 'timestamptz')} ${since} and ${tests} offset 0) r`
  const members = `with m as (${membersSql({ ...page, job }, keys, bind)})`
  await store.connection.query({ text: `${members} ${compartmentsSql(job, found)}`, values })
}

/** Lists members of another type than Patient themselves, under the first id. */
async function listMembers(
  store: StoreContext,
  { id }: PlannedJob,
  own: Selection,
  { rows }: MemberPage,
): Promise<void> {
  const ids = rows.map((row) => row.id)
  const found = await selectedRows(store, { ...own, reach: 'all' }, ids)
  if (found.length === 0) return
  const { values, bind } = binder()
  const listed = `select ${bind(ids[0], 'uuid')} as patient, ${typeNumber(own.scope.type)} as place, e.ruling, e.id
    from ${changesSql(found, bind)} e(id, ver, ruling)`
  await store.connection.query({ text: compartmentsSql(bind(id, 'uuid'), listed), values })
}

/** Lists resources changed since, in their former compartments. */
async function listChanged(
  store: StoreContext,
  { id }: PlannedJob,
  selection: Selection,
): Promise<void> {
  const { project, type } = selection.scope
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

async function countRows(
  connection: Connection,
  job: string,
): Promise<ReadonlyMap<string, number>> {
  const rows = await connection.query<{ type: number; rows: number }>({
    name: 'export-listed',
    text: `select ${typeAtPlace('c')} as type, sum(cardinality(ids))::float8 as rows
      from export_compartment c where job = $1 group by 1`,
    values: [job],
  })
  return new Map(rows.map(({ type, rows }) => [typeName(type), rows]))
}

/** Rearranges the list of a type into consecutive arrays of `size`, each under its last id. Returns these ids. */
export async function cutList(
  connection: Connection,
  job: string,
  type: string,
  size: number,
): Promise<readonly string[]> {
  const rows = await connection.query<{ high: string }>({
    text: `with d as (delete from export_compartment c
          where job = $1 and ${typeAtPlace('c')} = $2 returning ruling, ids),
        i as (select distinct on (x.id) x.id, d.ruling from d cross join lateral unnest(d.ids) x(id)
          order by x.id, d.ruling),
        c as (select id, ruling, (row_number() over (order by id) - 1) / $3 as n from i),
        a as (select n, ruling, array_agg(id order by id) as ids from c group by n, ruling)
      insert into export_compartment (job, patient, place, ruling, ids)
        select $1, first_value(ids[cardinality(ids)]) over (partition by n
          order by ids[cardinality(ids)] desc), $2, ruling, ids from a returning patient as high`,
    values: [job, typeNumber(type), size],
  })
  return [...new Set(rows.map(({ high }) => high))].sort()
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
