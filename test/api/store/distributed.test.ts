/**
 * A walk through the service, on a PostgreSQL that pretends to be distributed by Project and writes down each
 * statement. Their shapes are compared with the limits of Citus (docs/scale.md): of 529 shapes, of which it rejected
 * 24, that reading of them found all 24 and five more. Imports the database, to record its statements.
 */
import { readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { temporaryFolder } from '../../../scripts/account.ts'
import { prepare } from '../../../scripts/migrate.ts'
import { startPostgres } from '../../../scripts/postgres.ts'
import { readConfig } from '../../../shared/core/config/config.ts'
import { createLogger } from '../../../shared/core/log.ts'
import { openDatabase } from '../../../shared/postgres/database.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { aBot, execute, handler } from '../../fixtures/bots/bots.ts'
import { exportAll, idsIn } from '../../fixtures/exports/exports.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'
import { findCitusRejection } from './distributing.ts'

/** Known unsupported statements; this list may only shrink. */
const REFUSED: readonly string[] = []

const folder = temporaryFolder('botica-distributed-')
t.teardown(() => rmSync(folder, { recursive: true, force: true }))
const postgres = await startPostgres({ folder, sharedBuffersMb: 64, durable: false })
t.teardown(() => postgres.stop())
await prepare(readConfig({ ...process.env, DATABASE_URL: postgres.url }))
const database = openDatabase(
  { databaseUrl: postgres.url, databasePool: 1 },
  createLogger('silent', 'script'),
)
for (const text of [
  // The service detects Citus by the name of this table.
  'create table pg_dist_partition ()',
  `alter system set log_statement = 'all'`,
  'select pg_reload_conf()',
]) {
  await database.query({ text, values: [] })
}
await database.close()
const botica = await openBotica(t, { worker: true, env: { DATABASE_URL: postgres.url } })
const { admin, superAdmin, project } = botica

const SEARCHES: readonly (readonly [query: string, found: number])[] = [
  ['Patient?name=wal', 2],
  ['Patient?family=walk&birthdate=1985', 2],
  ['Patient?identifier=urn:walk|1', 1],
  ['Patient?name:contains=alk&_sort=family', 2],
  ['Patient?_sort=-birthdate&_count=1', 2],
  ['Patient?email:missing=true&_total=accurate', 2],
  ['Patient?_has:Observation:subject:code=walked', 1],
  ['Patient?_lastUpdated=gt2000&_elements=name', 2],
  ['Observation?subject.name=walk', 1],
  ['Observation?code=walked&_include=Observation:subject', 1],
  ['Observation?value-quantity=gt1', 1],
  ['Observation?date=ge2000&_sort=date', 1],
  ['Observation?code-value-quantity=walked$gt1', 1],
  ['Observation?date:missing=false', 1],
  ['?_type=Patient,Observation&_lastUpdated=gt2000', 3],
]

/** Returns the total of a search, or the number of matches of the page. */
async function found(query: string): Promise<number> {
  const { status, body, text } = await admin.get<{
    total?: number
    entry?: { search: { mode: string } }[]
  }>(`${query}${query.includes('_total') ? '' : '&_total=accurate'}`)
  if (status !== 200) throw new Error(`${query}: ${status} ${text}`)
  return body.total ?? body.entry?.filter(({ search }) => search.mode === 'match').length ?? 0
}

const patients: string[] = []

t.test('writes, reads, finds and deletes resources', async (t) => {
  for (const value of ['1', '2']) {
    const patient = await admin.create(
      aPatient({
        name: [{ family: 'Walk', given: ['Wally'] }],
        birthDate: '1985-01-01',
        identifier: [{ system: 'urn:walk', value }],
        telecom: [],
      }),
    )
    patients.push(patient.id)
  }
  const [id = ''] = patients
  const observation = await admin.create(
    anObservation(`Patient/${id}`, {
      code: { coding: [{ system: 'urn:walk', code: 'walked' }] },
      effectiveDateTime: '2020-01-01',
      valueQuantity: { value: 2, unit: 'km', system: 'http://unitsofmeasure.org', code: 'km' },
    }),
  )
  for (const [query, count] of SEARCHES) t.equal(await found(query), count, query)
  for (const path of [
    `Patient/${id}`,
    `Patient/${id}/_history`,
    'Patient/_history',
    '_history',
    'Patient/$meta',
  ]) {
    t.equal((await admin.get(path)).status, 200, path)
  }
  t.equal((await admin.get(`Patient/${id}/$everything`)).status, 200)
  t.equal((await superAdmin.get(`Patient/${id}`)).status, 200)
  const query = `{ PatientList(name: "walk") { id ObservationList(_reference: subject) { id } } }`
  t.notMatch((await admin.post('$graphql', { query })).text, /"errors"/)
  const transaction = {
    resourceType: 'Bundle',
    type: 'transaction',
    entry: [
      {
        request: { method: 'POST', url: 'Basic', ifNoneExist: 'identifier=urn:walk|b' },
        resource: {
          resourceType: 'Basic',
          code: { text: 'walk' },
          identifier: [{ system: 'urn:walk', value: 'b' }],
        },
      },
      { request: { method: 'DELETE', url: `Observation/${observation.id}` } },
      { request: { method: 'GET', url: `Patient/${id}` } },
    ],
  }
  const done = await admin.post('', transaction)
  t.equal(done.status, 200, done.text)
  const patch = [{ op: 'replace', path: '/birthDate', value: '1986-01-01' }]
  const type = { 'Content-Type': 'application/json-patch+json' }
  t.equal((await admin.patch(`Patient/${id}`, patch, type)).status, 200)
  t.equal((await admin.get(`Patient/${id}/_history/1`)).status, 200)
  const gone = await admin.del('Basic?identifier=urn:walk|b')
  t.equal(gone.status, 200, gone.text)
  t.equal(await found('Basic?identifier=urn:walk|b'), 0)
})

t.test('runs a policy, a bot, a subscription, a schedule and an export', async (t) => {
  const policy = await admin.create({
    resourceType: 'AccessPolicy',
    resource: [{ resourceType: 'Patient', criteria: 'Patient?name=walk' }],
  })
  const accessPolicy = { reference: `AccessPolicy/${policy.id}` }
  const { client } = await botica.createMember({ accessPolicy })
  t.equal((await client.get(`Patient/${patients[0]}`)).status, 200)
  t.equal((await client.get('Patient?_count=1')).status, 200)

  const bot = await aBot(
    botica,
    handler(`return (await medplum.search('Patient', 'name=walk')).entry.length`),
    {
      fields: { cronString: '0 0 1 1 *' },
    },
  )
  t.equal((await execute(admin, bot)).text, '2')
  await admin.create({
    resourceType: 'Subscription',
    status: 'active',
    reason: 'walk',
    criteria: 'Patient?name=walk',
    channel: { type: 'rest-hook', endpoint: `Bot/${bot}` },
  })
  t.equal(
    (
      await admin.put(
        `Patient/${patients[1]}`,
        aPatient({ id: patients[1], name: [{ family: 'Walk' }] }),
      )
    ).status,
    200,
  )
  t.equal((await admin.get(`/admin/projects/${project.id}/schedules`)).status, 200)
  t.equal((await admin.get(`/admin/projects/${project.id}/subscriptions`)).status, 200)
  const member = patients.map((id) => ({ entity: { reference: `Patient/${id}` } }))
  const group = await admin.create({ resourceType: 'Group', type: 'person', actual: true, member })
  await admin.create({
    resourceType: 'Provenance',
    target: [{ reference: `Patient/${patients[0]}` }],
    recorded: '2020-01-01T00:00:00Z',
    agent: [{ who: { display: 'walk' } }],
  })
  for (const path of ['$export', 'Patient/$export', `Group/${group.id}/$export`]) {
    const query = `${path}?_type=Patient,Provenance`
    t.same(idsIn(await exportAll(admin, query), 'Patient'), patients.toSorted(), path)
    if (path !== '$export') {
      const { manifest } = await exportAll(admin, `${query}&organizeOutputBy=Patient`)
      t.match(manifest.output, [{ count: 5 }], path)
    }
  }
  const until = new Date().toISOString()
  await admin.put(`Patient/${patients[0]}`, aPatient({ id: patients[0] }))
  const period = `$export?_since=2000-01-01T00:00:00Z&_until=${until}`
  t.same(idsIn(await exportAll(admin, period), 'Patient'), patients.toSorted())
})

t.test('sends no statement that Citus rejects', (t) => {
  const refused = new Map<string, string>()
  for (const text of statements(readFileSync(join(folder, 'log'), 'utf8'))) {
    const reason = findCitusRejection(text)
    if (reason !== undefined) refused.set(reason, text)
  }
  const isKnown = (reason: string) => REFUSED.some((one) => reason.startsWith(one))
  t.same(
    [...refused].filter(([reason]) => !isKnown(reason)),
    [],
  )
  t.end()
})

/** Continuation lines begin with a tab. */
function statements(log: string): ReadonlySet<string> {
  const entries = log.matchAll(/LOG: {2}(?:execute [^:]*|statement): (.*(?:\n\t.*)*)/g)
  const ours = Array.from(entries, ([, text = '']) => text).filter((text) =>
    /^\s*(?:with|select|insert|update|delete|copy \()\b/i.test(text),
  )
  t.ok(ours.length > 100, `${ours.length} statements`)
  return new Set(ours)
}
