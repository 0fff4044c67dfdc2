/**
 * The rows of the REST error table, without 409, 429 and 503, which other files test. Imports the database, to watch
 * statements from another one.
 */
import { randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import { prepare } from '../../../scripts/migrate.ts'
import { readConfig } from '../../../shared/core/config/config.ts'
import { createLogger } from '../../../shared/core/log.ts'
import { openDatabase } from '../../../shared/postgres/database.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Answer } from '../../fixtures/client.ts'
import { aPatient, MRN_SYSTEM } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin, anonymous } = botica
const MRN = randomUUID()
const twins = { identifier: [{ system: MRN_SYSTEM, value: MRN }] }
const one = await admin.create(aPatient(twins))
await admin.create(aPatient(twins))
const deleted = await admin.create(aPatient())
await admin.del(`Patient/${deleted.id}`)
const same = { Accept: 'application/fhir+json' }
const type = (name: string) => ({ 'Content-Type': name })

type Row = readonly [
  name: string,
  ask: () => Promise<Answer>,
  status: number,
  id: string | undefined,
  code: string,
]

const rows: readonly Row[] = [
  ['bad structure', () => admin.post('Patient', { ...one, x: 1 }), 400, undefined, 'structure'],
  ['a bad value', () => admin.get('Patient?birthdate=soon'), 400, undefined, 'invalid'],
  ['no token', () => anonymous.get('Patient'), 401, 'unauthorized', 'login'],
  ['not allowed', () => admin.del(`User/${randomUUID()}`), 403, 'forbidden', 'forbidden'],
  ['an unknown id', () => admin.get(`Patient/${randomUUID()}`), 404, 'not-found', 'not-found'],
  ['an unknown path', () => anonymous.get('/nowhere'), 404, 'not-found', 'not-found'],
  ['a wrong method', () => admin.put('Patient/1/_history', {}), 405, undefined, 'not-supported'],
  [
    'a format that is not served',
    () => admin.get(`Patient/${one.id}`, { Accept: 'application/fhir+xml' }),
    406,
    undefined,
    'not-supported',
  ],
  ['a deleted resource', () => admin.get(`Patient/${deleted.id}`), 410, 'gone', 'deleted'],
  [
    'an old version',
    () => admin.put(`Patient/${one.id}`, one, { 'If-Match': 'W/"7"' }),
    412,
    'precondition-failed',
    'processing',
  ],
  [
    'several matches',
    () => admin.put(`Patient?identifier=${MRN}`, aPatient(twins)),
    412,
    'multiple-matches',
    'multiple-matches',
  ],
  [
    'a large body',
    () => admin.post('Patient', `{"resourceType":"Patient","x":"${'x'.repeat(17_000_000)}"}`, same),
    413,
    'too-large',
    'too-long',
  ],
  [
    'a body of another type',
    () => admin.post('Patient', '<Patient/>', type('application/fhir+xml')),
    415,
    'unsupported-media-type',
    'not-supported',
  ],
]

for (const [name, ask, status, id, code] of rows) {
  t.test(`returns ${status} and ${code} for ${name}`, async (t) =>
    assertOutcome(t, await ask(), { expected: status, id, code }),
  )
}

t.test(
  'returns a generic 500 for unexpected errors and 504 for a cancelled statement',
  async (t) => {
    const name = `errors_${randomUUID().replaceAll('-', '')}`
    const log = createLogger('silent', 'script')
    const main = openDatabase({ databaseUrl: process.env.DATABASE_URL ?? '', databasePool: 1 }, log)
    await main.query({ text: `create database ${name}`, values: [] })
    const url = new URL(process.env.DATABASE_URL ?? '')
    url.pathname = `/${name}`
    const env = { DATABASE_URL: url.toString() }
    await prepare(readConfig({ ...process.env, ...env }))
    const own = openDatabase({ databaseUrl: env.DATABASE_URL, databasePool: 3 }, log)
    const run = (text: string) => own.query<{ ended: boolean }>({ text, values: [] })
    t.teardown(async () => {
      await Promise.all([own.close(), main.close()])
    })

    const { admin } = await openBotica(t, { env })
    const { id } = await admin.create(aPatient())
    await own.transaction(async (connection) => {
      await connection.query({ text: 'lock table version', values: [] })
      const reading = admin.get(`Patient/${id}`)
      const cancel = `select pg_cancel_backend(pid) as ended from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock'`
      await until(async () => (await run(cancel)).length > 0, 60_000)
      assertOutcome(t, await reading, { expected: 504, id: 'server-timeout', code: 'timeout' })
    })

    await run('alter table version rename to elsewhere')
    const answer = await admin.get(`Patient/${id}`)
    assertOutcome(t, answer, { expected: 500, id: undefined, code: 'exception' })
    t.match(answer.body, { issue: [{ details: { text: 'Internal server error' } }] })
    t.notMatch(answer.text, /select|version|relation|stack|\.ts/)
  },
)

interface Expected {
  readonly expected: number
  readonly id: string | undefined
  readonly code: string
}

function assertOutcome(t: Test, { status, body }: Answer, { expected, id, code }: Expected): void {
  t.equal(status, expected)
  t.match(body, { resourceType: 'OperationOutcome', issue: [{ severity: 'error', code }] })
  t.equal(body.id, id)
  const { extension } = body as { extension?: readonly { url: string }[] }
  t.ok(
    extension?.some(({ url }) => url.endsWith('/tracing')),
    'names the request',
  )
}
