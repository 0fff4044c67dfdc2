/** Rows for a bench of exports: real ones, and copies of these that PostgreSQL makes by itself. */
import { randomUUIDv7 } from 'node:crypto'
import pg from 'pg'
import { type Principal, systemPrincipal } from '../../shared/access/principal.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import { syntheaResources } from './samples.ts'
import type { Stage } from './stage.ts'

const AT_ONCE = 200
const PATIENTS = 1000
const FEWEST_OBSERVATIONS = 8
/** Each of these observations goes through the repository, which takes its time. */
const OBSERVATION_SHARE = 4

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

/** Patients of a Project with some observations each, a share of them members of a Group. */
export async function patientsOf(
  stage: Stage,
  projectId: string,
  share: number,
  resources: number,
): Promise<{ readonly group: string; readonly count: number; readonly members: number }> {
  const principal = await ownerOf(stage, projectId)
  const samples = await syntheaResources()
  const patient = samples.find(({ resourceType }) => resourceType === 'Patient')
  const observation = samples.find(({ resourceType }) => resourceType === 'Observation')
  if (patient === undefined || observation === undefined) throw new Error('There are no samples')
  const observations = Math.floor(resources / OBSERVATION_SHARE / PATIENTS)
  const length = Math.max(FEWEST_OBSERVATIONS, observations)
  const ids = Array.from({ length: PATIENTS }, () => randomUUIDv7())
  await createAll(
    stage,
    principal,
    ids.flatMap((id) => {
      const reference = `Patient/${id}`
      const own = { ...observation, subject: { reference }, encounter: undefined }
      return [{ ...patient, id }, ...Array.from({ length }, () => ({ ...own, id: randomUUIDv7() }))]
    }),
  )
  const chosen = ids.filter((_, place) => place % share === 0)
  const group = randomUUIDv7()
  const member = chosen.map((id) => ({ entity: { reference: `Patient/${id}` } }))
  const resource = { resourceType: 'Group', id: group, type: 'person', actual: true, member }
  await createAll(stage, principal, [resource])
  return { group, count: ids.length, members: chosen.length }
}

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
