/** Rows for a bench of exports: real ones, and copies of these that PostgreSQL makes by itself. */
import { randomUUIDv7 } from 'node:crypto'
import pg from 'pg'
import { type Principal, systemPrincipal } from '../../shared/access/principal.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import { syntheaResources } from './samples.ts'
import type { Stage } from './stage.ts'

const AT_ONCE = 200
const PATIENTS = 1000
/** The least number of resources of a patient, itself included. */
const FEWEST_EACH = 9

/** The samples, and copies of their rows under new ids, as the server makes them, until there are so many. */
export async function fillProject(
  stage: Stage,
  projectId: string,
  resources: number,
): Promise<void> {
  const principal = await ownerOf(stage, projectId)
  const samples = await syntheaResources()
  await createAll(stage, principal, samples)
  const { number } = principal.project
  await copyRows(stage, number, Math.floor(resources / samples.length) - 1)
}

/**
 * So many resources at most: patients of a Project, each with a sample's own resources under new ids, as many
 * of them as make that number. A share of the patients are members of a Group.
 */
export async function patientsOf(
  stage: Stage,
  projectId: string,
  share: number,
  resources: number,
): Promise<{ readonly group: string; readonly count: number; readonly members: number }> {
  const principal = await ownerOf(stage, projectId)
  const { shared, compartments } = sorted(await syntheaResources())
  await createAll(stage, principal, shared)
  const length = Math.max(FEWEST_EACH, Math.floor(resources / PATIENTS))
  const patients = Array.from({ length: PATIENTS }, (_, place) =>
    underNewIds(compartments[place % compartments.length] ?? []).slice(0, length),
  )
  await createAll(stage, principal, patients.flat())
  const chosen = patients.flatMap(([patient], place) => (place % share === 0 ? [patient?.id] : []))
  const group = randomUUIDv7()
  const member = chosen.map((id) => ({ entity: { reference: `Patient/${id}` } }))
  const resource = { resourceType: 'Group', id: group, type: 'person', actual: true, member }
  await createAll(stage, principal, [resource])
  return { group, count: patients.length, members: chosen.length }
}

/** Sorts samples into those of each patient, the patient first, and those that all share. */
function sorted(samples: readonly Resource[]) {
  const isShared = ({ resourceType }: Resource) => SHARED.has(resourceType)
  const own = samples.filter((resource) => !isShared(resource))
  const firsts = own.flatMap(({ resourceType }, place) =>
    resourceType === 'Patient' ? [place] : [],
  )
  const compartments = firsts.map((first, i) => own.slice(first, firsts[i + 1]))
  const shared = new Map(samples.filter(isShared).map((resource) => [resource.id, resource]))
  return { shared: [...shared.values()], compartments }
}

const SHARED: ReadonlySet<string> = new Set(['Organization', 'Practitioner'])

function underNewIds(resources: readonly Resource[]): Resource[] {
  const ids = new Map(resources.map(({ id }) => [id, randomUUIDv7()]))
  const text = JSON.stringify(resources).replaceAll(ID, (id) => ids.get(id) ?? id)
  return JSON.parse(text)
}

const ID = /[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/g

async function ownerOf({ services }: Stage, projectId: string): Promise<Principal> {
  const project = await services.principals.project(projectId)
  if (project === undefined) throw new Error('There is no Project')
  return systemPrincipal(project)
}

async function createAll(
  { services }: Stage,
  principal: Principal,
  resources: readonly Resource[],
): Promise<void> {
  for (let from = 0; from < resources.length; from += AT_ONCE) {
    const some = resources.slice(from, from + AT_ONCE)
    await services.repository.transaction((transaction) =>
      transaction.together(
        some.map((resource) => (inner) => inner.create(principal, resource, { keepId: true })),
        (_, error) => error,
      ),
    )
  }
}

/** Over a connection without time-outs. */
async function copyRows({ config }: Stage, project: number, copies: number): Promise<void> {
  const client = new pg.Client({ connectionString: config.databaseUrl })
  await client.connect()
  await client.query('create temporary table bench_copy (type smallint, id uuid, copy uuid)')
  await client.query(
    `insert into bench_copy select type, id, uuidv7() from (select type, id
      from resource cross join generate_series(1, $2) n where project = $1 order by n) x`,
    [project, copies],
  )
  for (const table of ['resource', 'version']) {
    const { rows } = await client.query<{ name: string }>(
      `select quote_ident(column_name) as name from information_schema.columns
        where table_name = $1 and column_name <> 'id' and is_generated = 'NEVER'`,
      [table],
    )
    const names = rows.map(({ name }) => name)
    await client.query(
      `insert into ${table} (id, ${names.join()})
        select c.copy, ${names.map((name) => `t.${name}`).join()}
        from ${table} t join bench_copy c on c.type = t.type and c.id = t.id
        where t.project = $1 order by c.copy`,
      [project],
    )
  }
  await client.query('analyze')
  await client.end()
}
