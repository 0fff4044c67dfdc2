/**
 * A database of version 0.1.0 with all kinds of rows runs with the current code. In the second case the migrations
 * run first, and the rows come afterwards by the statements of 0.1.0: its processes write next to current ones until
 * they are replaced. `platform-faults.test.ts` rolls processes between this version and a later schema. Imports the
 * migrations, which run before a service listens.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { gunzipSync } from 'node:zlib'
import t, { type Test } from 'tap'
import { prepare } from '../../scripts/migrate.ts'
import { withClient } from '../../scripts/postgres.ts'
import { readConfig } from '../../shared/core/config/config.ts'
import { createLogger } from '../../shared/core/log.ts'
import { openDatabase } from '../../shared/postgres/database.ts'
import { migrate } from '../../shared/store/migrate.ts'
import { openBotica, until } from '../fixtures/botica.ts'
import { type Client, createClient, signIn } from '../fixtures/client.ts'
import { ROOT } from '../fixtures/page.ts'
import { createEmptyDatabase } from '../fixtures/store/own-database.ts'

const LONG_MS = 120_000
/** The content of a Binary is in the storage, the work of a job goes on meanwhile; the others belong to the service. */
const NOT_LISTED = ['AsyncJob', 'Binary', 'BulkDataExport', 'JsonWebKey', 'Login']
const FOLDER = join(ROOT, 'test/data/upgrade')
const sql = gunzipSync(readFileSync(join(FOLDER, '0.1.0.sql.gz'))).toString()
const [schema = '', rows = ''] = sql.split('\n-- rows\n')
const stored: {
  superAdmin: { id: string; secret: string }
  client: { id: string; secret: string }
  member: { id: string; secret: string }
  patient: string
  deleted: string
  bot: string
  export: string
  refreshToken: string
} = JSON.parse(readFileSync(join(FOLDER, '0.1.0.json'), 'utf8'))

const SUPER_ADMIN = {
  SUPER_ADMIN_CLIENT_ID: stored.superAdmin.id,
  SUPER_ADMIN_CLIENT_SECRET: stored.superAdmin.secret,
}

/** Tokens and accepted work expire, so the rows get new times. Runs of another Redis are taken over after half an hour. */
const AS_OF_NOW = `
  update refresh_token set expires = now() + interval '1 day';
  update pending_run set added = now() - interval '1 hour',
    job = jsonb_set(job::jsonb, '{deadline}', to_jsonb((extract(epoch from now()) + 3600) * 1000));
  update export_job set requested = now() where finished is null;`

const run = (url: string, text: string) =>
  withClient({ connectionString: url }, (client) => client.query(text))

async function runMigrations(url: string): Promise<void> {
  const database = openDatabase(
    { databaseUrl: url, databasePool: 1 },
    createLogger('silent', 'script'),
  )
  await migrate(database)
  await database.close()
}

t.test('a database of 0.1.0, migrated', async (t) => {
  const url = await createEmptyDatabase(t)
  await run(url, schema + rows + AS_OF_NOW)
  await prepare(readConfig({ ...process.env, ...SUPER_ADMIN, DATABASE_URL: url }))
  await use(t, url)
})

t.test('a migrated database with rows that 0.1.0 wrote later', async (t) => {
  const url = await createEmptyDatabase(t)
  await run(url, schema)
  await runMigrations(url)
  await run(url, rows + AS_OF_NOW)
  await use(t, url)
})

async function use(t: Test, url: string): Promise<void> {
  await checkMigrations(t, url)
  const { baseUrl, anonymous } = await openBotica(t, {
    worker: 'process',
    env: {
      ...SUPER_ADMIN,
      DATABASE_URL: url,
      WORKER_QUEUES: 'bots-sync,bots-async,requests,schedules,export,import,change,upkeep',
    },
  })
  const admin = await signIn(baseUrl, stored.client.id, stored.client.secret)
  await readAll(t, admin)
  await search(t, admin)
  await checkAccess(t, baseUrl, admin)
  await refresh(t, anonymous)
  await write(t, admin)
  await finishWork(t, admin)
}

async function checkMigrations(t: Test, url: string): Promise<void> {
  const { rows } = await run(url, 'select name from knex_migrations order by name')
  const files = readdirSync(join(ROOT, 'shared/store/schema')).filter((n) => n.endsWith('.ts'))
  t.same(
    rows.map(({ name }) => name),
    files.toSorted(),
  )
}

interface Bundle {
  readonly total?: number
  readonly entry?: readonly { readonly resource: Record<string, unknown> & { id: string } }[]
}

/** Signed addresses change every second. */
function withoutSignatures(resource: unknown): unknown {
  return JSON.parse(JSON.stringify(resource).replace(/\?Expires=[^"]*/g, ''))
}

/** Reads each stored resource by its id and by its history. */
async function readAll(t: Test, admin: Client): Promise<void> {
  const lines = rows.match(/^insert into version .*$/gm) ?? []
  const types = new Set(lines.flatMap((line) => /"resourceType":"(\w+)"/.exec(line)?.[1] ?? []))
  for (const type of NOT_LISTED) types.delete(type)
  t.ok(types.size > 100, `${types.size} types`)
  let count = 0
  for (const type of types) {
    const { status, body } = await admin.get<Bundle>(`${type}?_count=1000`)
    t.equal(status, 200, type)
    for (const { resource } of body.entry ?? []) {
      const found = await admin.get(`${type}/${resource.id}`)
      t.same(withoutSignatures(found.body), withoutSignatures(resource), `${type}/${resource.id}`)
      count++
    }
  }
  t.ok(count > 140, `${count} resources`)
  const history = await admin.get<Bundle>(`Patient/${stored.patient}/_history`)
  t.equal(history.body.entry?.length, 2)
  t.equal((await admin.get(`Patient/${stored.deleted}`)).status, 410)
}

async function search(t: Test, admin: Client): Promise<void> {
  const totals: Record<string, number> = {
    'Patient?identifier=urn:mrn|up-1': 1,
    'Patient?name=chalmers&birthdate=1974-12-25&gender=male': 1,
    'Patient?name=gone': 0,
    'Patient?shoe=large': 1,
    [`Observation?subject=Patient/${stored.patient}&value-quantity=gt71|http://unitsofmeasure.org|kg`]: 1,
    'Observation?subject:Patient.identifier=up-1': 1,
  }
  for (const [query, total] of Object.entries(totals)) {
    // A newer revision of the index is built in the background.
    await until(async () => {
      const { body } = await admin.get<Bundle>(`${query}&_total=accurate&_count=0`)
      return body.total === total
    }, LONG_MS)
    t.pass(query)
  }
  const display = await admin.get('CodeSystem/$lookup?system=https://example.org/big&code=b2')
  t.match(display.text, 'Big two')
  const expanded = await admin.get(
    'ConceptMap/$translate?url=https://example.org/map&system=https://example.org/ward&code=icu',
  )
  t.match(expanded.text, '"code":"IC"')
}

async function checkAccess(t: Test, baseUrl: string, admin: Client): Promise<void> {
  const member = await signIn(baseUrl, stored.member.id, stored.member.secret)
  t.equal((await member.get(`Patient/${stored.patient}`)).status, 200)
  t.equal((await member.get('Observation')).status, 403)
  t.equal((await member.del(`Patient/${stored.patient}`)).status, 403)
  t.equal((await createClient(baseUrl).get(`Patient/${stored.patient}`)).status, 401)
  t.equal((await admin.get('ProjectMembership')).status, 200)
}

async function refresh(t: Test, anonymous: Client): Promise<void> {
  const form = new URLSearchParams({
    grant_type: 'refresh_token',
    refresh_token: stored.refreshToken,
  })
  const answer = await anonymous.post<{ access_token?: string }>('/oauth2/token', form.toString(), {
    'content-type': 'application/x-www-form-urlencoded',
  })
  t.equal(answer.status, 200, answer.text)
  t.type(answer.body.access_token, 'string')
}

async function write(t: Test, admin: Client): Promise<void> {
  const path = `Patient/${stored.patient}`
  const { body } = await admin.get<Record<string, unknown>>(path)
  const written = await admin.put(path, { ...body, active: true })
  t.match(written, { status: 200, body: { active: true, meta: { versionId: '3' } } })
  const run = await admin.post(`Bot/${stored.bot}/$execute`, { n: 'after the upgrade' })
  t.match(run, { status: 200, body: { resourceType: 'Communication' } })
}

/** Work that 0.1.0 accepted is done by the current worker. */
async function finishWork(t: Test, admin: Client): Promise<void> {
  for (const note of ['first', 'Delivered', 'pending', 'Delivered Later', 'after the upgrade']) {
    await until(async () => {
      const { text } = await admin.get('Communication?_count=1000')
      return text.includes(`"ran on ${note}"`)
    }, LONG_MS)
    t.pass(note)
  }
  await until(async () => {
    const { status } = await admin.get(`/fhir/R4/bulkdata/export/${stored.export}`)
    return status === 200
  }, LONG_MS)
  t.pass('the export')
}
