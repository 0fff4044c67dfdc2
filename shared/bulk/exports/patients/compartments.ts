/**
 * Exports that are organized by patients: whose compartments there are, and what of each is exported, are written
 * down with the plan, as it was at the time of the export. What is read afterwards are versions alone.
 * https://build.fhir.org/ig/HL7/bulk-data/export.html#bulk-data-output-file-organization
 */
import type { Principal } from '../../../access/principal.ts'
import { type Issue, issue } from '../../../errors.ts'
import { typeName, typeNumber } from '../../../fhir/definitions.ts'
import { binder, type Connection } from '../../../platform/postgres/statement.ts'
import { keysLiteral } from '../../../store/index/keys.ts'
import { isLegalId, normalId, type Store } from '../../../store/rows/context.ts'
import { idOf } from '../../../store/rows/rows.ts'
import type { PlannedJob } from '../rows/jobs.ts'
import { readRowsAsOf } from '../rows/scope.ts'
import { type Selection, selectionOf } from '../rows/select.ts'
import { addChangedRows, addProvenance } from './changes.ts'
import {
  compartmentsSql,
  GONE,
  isOwnSql,
  leftOut,
  membersOf,
  PATIENT,
  rowTestsSql,
  typeAtPlace,
} from './members.ts'
import { targetTypes } from './provenance.ts'

/** Patients that are listed by a statement. */
const AT_ONCE = 200
/** Rows of a part, about: less than half a file; a larger patient begins one. A patient is in one part only. */
const PART_ROWS = 40_000

/** Returns the row id of the last patient of each part, and issues about resources that are in none. */
export async function listCompartments(
  store: Store,
  principal: Principal,
  job: PlannedJob,
  { types, at }: { readonly types: readonly string[]; readonly at: Date },
): Promise<{ readonly ends: readonly string[]; readonly issues: readonly Issue[] }> {
  const { connection } = store
  const isAbout = types.includes('Provenance')
  const listed = isAbout ? [...targetTypes(principal, job.input), 'Provenance'] : types
  const here = await typesWith(connection, principal, { types: listed, at, orHere: true })
  const selections = await selectionsOf(store, principal, job, here)
  const about = selections.get('Provenance')
  selections.delete('Provenance')
  let missing = 0
  const { patients, others } = await patientsOf(store, principal, job, at)
  for await (const named of patients) {
    missing += await listSome(store, principal, job, {
      patients: named,
      selections: [...selections.values()],
      at,
    })
  }
  // After what is there: what is changed meanwhile is in one of the two, or in both.
  for (const type of await typesWith(connection, principal, {
    types: [...selections.keys()],
    at,
    orHere: false,
  })) {
    const selection = selections.get(type)
    if (selection !== undefined) await addChangedRows(store, job.id, selection)
  }
  if (about !== undefined) await addProvenance(store, job, about, [...selections.keys()])
  if (types.every((type) => type === 'Provenance')) await keepProvenance(connection, job.id)
  const costly = await leaveOutCopies(connection, principal.project.number, job.id)
  return {
    ends: await partEnds(connection, job.id, PART_ROWS),
    issues: [
      ...leftOut(missing, 'not there or may not be read'),
      ...leftOut(others, 'no patients, and in no compartment'),
      ...costly,
      ...(job.input.level === 'system' ? [ONLY_PATIENTS] : []),
    ],
  }
}

const ONLY_PATIENTS = issue(
  'information',
  'informational',
  'What is in the compartment of no patient is left out',
)

interface TypesAt {
  readonly types: readonly string[]
  readonly at: Date
  readonly orHere: boolean
}

/** Returns types with something written since; `orHere`: or with rows. One statement. */
async function typesWith(
  connection: Connection,
  { project }: Principal,
  { types, at, orHere }: TypesAt,
): Promise<readonly string[]> {
  const rows = await connection.query<{ type: number }>({
    name: 'export-types',
    text: `select t.type from unnest($2::smallint[]) t(type)
      where exists (select 1 from version n
          where n.project = $1 and n.type = t.type and n.lu > $3)
        or ($4 and exists (select 1 from resource r where r.project = $1 and r.type = t.type))`,
    values: [project.number, types.map(typeNumber), at, orHere],
  })
  return rows.map(({ type }) => typeName(type))
}

/** Keeps Provenance only: its targets were listed to find it, and the export does not ask for them. */
async function keepProvenance(connection: Connection, job: string): Promise<void> {
  await connection.query({
    text: 'delete from export_compartment where job = $1 and place <> $2',
    values: [job, typeNumber('Provenance')],
  })
}

async function selectionsOf(
  store: Store,
  principal: Principal,
  job: PlannedJob,
  types: readonly string[],
): Promise<Map<string, Selection>> {
  const found = new Map<string, Selection>()
  for (const type of types) {
    const selection = await selectionOf(store, principal, type, job)
    if (selection === undefined) continue
    found.set(type, { ...selection, reach: type === 'Provenance' ? 'all' : 'listed' })
  }
  return found
}

/** Patients that may be exported, and ids of those of them that were named. */
interface Patients {
  readonly rowIds: readonly string[]
  readonly ids?: readonly string[]
}

/** Some at a time; `others`: members of a Group that are no patients. */
async function patientsOf(
  store: Store,
  principal: Principal,
  { input }: PlannedJob,
  at: Date,
): Promise<{
  readonly patients: AsyncIterable<Patients> | Iterable<Patients>
  readonly others: number
}> {
  const isAll = input.level === 'system' || (input.level === 'patient' && !input.patients)
  if (isAll) return { patients: allPatients(store.connection, principal, at), others: 0 }
  const members = await membersOf(store, principal, input, at)
  const named = members.get('Patient') ?? []
  const all = [...members.values()].reduce((sum, ids) => sum + ids.length, 0)
  return { patients: inPieces(store, named), others: all - named.length }
}

function* inPieces({ keys }: Store, named: readonly string[]): Generator<Patients> {
  for (let from = 0; from < named.length; from += AT_ONCE) {
    const ids = named.slice(from, from + AT_ONCE)
    const rowIds = ids.filter(isLegalId).map((id) => keys.rowId('Patient', id))
    yield { rowIds, ids }
  }
}

/** With those that have been deleted since. */
async function* allPatients(
  connection: Connection,
  { project }: Principal,
  at: Date,
): AsyncGenerator<Patients> {
  let after: string | undefined
  do {
    const rows: readonly { id: string }[] = await connection.query<{ id: string }>({
      name: 'export-patients',
      text: `(select id from resource where project = $1 and type = ${PATIENT}
            and ($2::uuid is null or id > $2) order by id limit ${AT_ONCE})
        union (select id from version where project = $1 and type = ${PATIENT} and lu > $3
            and content is null and ($2::uuid is null or id > $2) order by id limit ${AT_ONCE})
        order by id limit ${AT_ONCE}`,
      values: [project.number, after ?? null, at],
    })
    after = rows.length < AT_ONCE ? undefined : rows.at(-1)?.id
    yield { rowIds: rows.map(({ id }) => id) }
  } while (after !== undefined)
}

interface Selected {
  readonly patients: Patients
  readonly selections: readonly Selection[]
  readonly at: Date
}

/** Answers how many of those that were named are not there, or not visible. */
async function listSome(
  store: Store,
  principal: Principal,
  { id: job, input }: PlannedJob,
  { patients: { rowIds, ids = [] }, selections, at }: Selected,
): Promise<number> {
  const { keys, connection } = store
  const rows = await readRowsAsOf(store, principal, 'Patient', { wanted: rowIds, at })
  const found = rows.map(({ id, content }) => ({ id, name: idOf(content ?? '') }))
  const here = new Set(found.map(({ name }) => name))
  const gone = ids.filter((id) => !here.has(normalId(id)))
  const project = principal.project.number
  const held = found.map(({ name }) => keys.compartment(project, `Patient/${name}`))
  const { values, bind } = binder()
  const own = bind(job, 'uuid')
  const patients = [keysLiteral(held), found.map(({ id }) => id)] as const
  const [ruling, tests] = rowTestsSql(selections, bind)
  const since = input.since === undefined ? '' : `and r.lu > ${bind(input.since, 'timestamptz')}`
  const rowsSql = `select p.id as patient, r.id, ruling,
      case when ${isOwnSql('r', 'p.id')} then 0 else r.type end as place
    from unnest(${bind(patients[0], 'bigint[]')}, ${bind(patients[1], 'uuid[]')}) p(key, id)
    cross join lateral (select r.type, r.id, ${ruling} as ruling from resource r
      where r.keys @> array[p.key] and (r.project = ${bind(project, 'int')}) is true
        and (r.type = any(${bind(
          selections.map(({ scene }) => typeNumber(scene.type)),
          'smallint[]',
        )})) is true
        and r.lu <= ${bind(at, 'timestamptz')} ${since} and ${tests} offset 0) r`
  await connection.query({
    text: `with m as (insert into export_member (job, reference, key, id)
        select ${own}, * from unnest(
          ${bind([...found.map(({ name }) => name), ...gone].map(referenceOf), 'text[]')},
          ${bind(keysLiteral([...held, ...gone.map(() => GONE)]), 'bigint[]')},
          ${bind([...patients[1], ...gone.map(() => null)], 'uuid[]')}) on conflict do nothing)
      ${compartmentsSql(own, rowsSql)}`,
    values,
  })
  return gone.length
}

function referenceOf(id: string): string {
  return `Patient/${id}`
}

/** Row ids of the last patient of each part of about `size` lines. */
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

// A resource in very many compartments would be in as many blocks: a Group of 50,000 members is 5 MB, and an export of
// its members' compartments had 250 GB of it.
/** Copies that nobody counts the bytes of. */
const COPIES = 100
/** Bytes of all copies of one resource. */
const COPIES_BYTES = 256 * 1024 * 1024

/** Lines that are counted by a statement, which has a time limit. */
const LINES_COUNTED = 4_000_000

interface Copied {
  readonly type: number
  readonly id: string
  readonly copies: number
  /** The beginning of it. */
  readonly content: string
}

/** Takes out resources that are too large for all their blocks. Returns issues about them. */
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
    for (const copied of await copiedOf(connection, project, { job, round, rounds })) {
      issues.push(await leaveOut(connection, job, copied))
    }
  }
  return issues
}

/** Counts copies of the ids whose last byte is that of the round. */
async function copiedOf(
  connection: Connection,
  project: number,
  { job, round, rounds }: { readonly job: string; readonly round: number; readonly rounds: number },
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
