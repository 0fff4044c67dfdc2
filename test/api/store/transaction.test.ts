/** Imports the database, to break connections inside a transaction. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { HttpError } from '../../../shared/core/errors.ts'
import { createLogger } from '../../../shared/core/log.ts'
import { openDatabase } from '../../../shared/postgres/database.ts'
import { parseSearch } from '../../../shared/search/language/search.ts'
import {
  countStatements,
  databaseUrl,
  failureStatus,
  openTestStore,
} from '../../fixtures/store/store.ts'

const { database, repository, aMember } = await openTestStore(t)
const member = await aMember()
const log = createLogger('silent', 'script')

const aPatient = (mrn: string) => ({
  resourceType: 'Patient',
  identifier: [{ system: 'urn:mrn', value: mrn }],
})
const byMrn = (mrn: string) => parseSearch('Patient', `identifier=urn:mrn|${mrn}`)
const countByMrn = async (mrn: string) =>
  (await repository.search(member, byMrn(mrn))).versions.length

t.test('leaves nothing of a failed transaction', async (t) => {
  const mrn = randomUUID()
  const failure = repository.transaction(async (inner) => {
    const { id } = await inner.create(member, aPatient(mrn))
    t.equal((await inner.search(member, byMrn(mrn))).versions.length, 1, 'it sees its own writes')
    t.equal(await failureStatus(repository.read(member, 'Patient', id)), 404, 'others do not')
    await inner.read(member, 'Patient', randomUUID())
  })
  t.equal(await failureStatus(failure), 404)
  t.equal(await countByMrn(mrn), 0)
})

t.test('commits a transaction atomically', async (t) => {
  const mrn = randomUUID()
  const ids = await repository.transaction(async (inner) => {
    const a = await inner.create(member, aPatient(mrn))
    const b = await inner.create(member, aPatient(mrn))
    await inner.update(member, { ...aPatient(mrn), id: a.id, active: true })
    await inner.delete(member, 'Patient', b.id)
    return [a.id, b.id]
  })
  t.match(await repository.read(member, 'Patient', ids[0] ?? ''), { ver: 2 })
  t.equal(await failureStatus(repository.read(member, 'Patient', ids[1] ?? '')), 410)
})

t.test('creates one resource for 20 racing conditional creates', async (t) => {
  const mrn = randomUUID()
  const written = await Promise.all(
    Array.from({ length: 20 }, () =>
      repository.createConditional(member, aPatient(mrn), byMrn(mrn)),
    ),
  )
  t.equal(new Set(written.map(({ id }) => id)).size, 1)
  t.equal(written.filter(({ outcome }) => outcome === 'created').length, 1)
  t.equal(await countByMrn(mrn), 1)
})

t.test('creates one resource for racing conditional updates of two processes', async (t) => {
  const other = await openTestStore(t)
  const mrn = randomUUID()
  const written = await Promise.all(
    Array.from({ length: 12 }, (_, i) =>
      (i % 2 ? repository : other.repository).updateConditional(
        member,
        { ...aPatient(mrn), multipleBirthInteger: i },
        byMrn(mrn),
      ),
    ),
  )
  t.equal(new Set(written.map(({ id }) => id)).size, 1)
  t.equal(await countByMrn(mrn), 1)
})

t.test('rejects a condition with several matches', async (t) => {
  const mrn = randomUUID()
  await repository.create(member, aPatient(mrn))
  await repository.create(member, aPatient(mrn))
  const condition = byMrn(mrn)
  t.equal(await failureStatus(repository.createConditional(member, aPatient(mrn), condition)), 412)
  t.equal(await failureStatus(repository.updateConditional(member, aPatient(mrn), condition)), 412)
  t.equal(await failureStatus(repository.deleteConditional(member, condition, 1)), 412)
  t.equal(await countByMrn(mrn), 2)
  t.equal((await repository.deleteConditional(member, condition, 2)).length, 2)
  t.equal((await repository.deleteConditional(member, condition, 2)).length, 0)
  const everything = parseSearch('Patient', '')
  t.equal(await failureStatus(repository.deleteConditional(member, everything, 1000)), 400)
})

t.test('blocks no other writes while one waits for a lock', async (t) => {
  const { id } = await repository.create(member, aPatient(randomUUID()))
  let waiting: Promise<unknown> | undefined
  let isOver = false
  await database.transaction(async (connection) => {
    await connection.query({
      text: 'select 1 from resource where id = $1 for update',
      values: [id],
    })
    waiting = repository.update(member, { ...aPatient(randomUUID()), id }).finally(() => {
      isOver = true
    })
    for (let n = 0; n < 5; n++) await repository.create(member, aPatient(randomUUID()))
    t.notOk(isOver, 'the update still waits')
  })
  await waiting
  t.ok(isOver)
})

t.test('checks references in the write statement if the Project requires it', async (t) => {
  const strict = await aMember({}, { checkReferencesOnWrite: true })
  const { id } = await repository.create(strict, aPatient(randomUUID()))
  const theirs = await repository.create(member, aPatient(randomUUID()))
  const observation = (...references: string[]) => ({
    resourceType: 'Observation',
    status: 'final',
    code: { text: 'x' },
    subject: { reference: references[0] ?? '' },
    performer: references.slice(1).map((reference) => ({ reference })),
  })
  const good = observation(`Patient/${id}`, '#contained', 'https://example.org/Patient/1')
  t.equal(await countStatements(database, () => repository.create(strict, good)), 1)
  await t.rejects(
    repository.create(strict, observation(`Patient/${id}`, `Patient/${randomUUID()}`)),
    Object.assign(new Error('Invalid reference (Not found)'), {
      outcome: { issue: [{ code: 'structure', expression: ['Observation.performer[0]'] }] },
    }),
  )
  const foreign = observation(`Patient/${theirs.id}`)
  t.equal(await failureStatus(repository.create(strict, foreign)), 400)
  const [x, y] = [randomUUID(), randomUUID()]
  await repository.transaction(async (inner) => {
    const link = (other: string) => ({
      ...aPatient(randomUUID()),
      link: [{ other: { reference: `Patient/${other}` }, type: 'seealso' }],
    })
    await inner.create(strict, { ...link(y), id: x }, { keepId: true })
    await inner.create(strict, { ...link(x), id: y }, { keepId: true })
  })
  t.match(await repository.read(strict, 'Patient', x), { id: x }, 'order inside does not matter')
})

t.test('returns 503 promptly when the database is down', async (t) => {
  const settings = { databaseUrl: 'postgres://x:y@127.0.0.1:1/none', databasePool: 3 }
  const away = openDatabase(settings, log)
  t.teardown(() => away.close())
  const start = performance.now()
  t.equal(await failureStatus(away.ping()), 503)
  t.ok(performance.now() - start < 30_000)
})

t.test('returns 503 for lost connections and replaces them', async (t) => {
  const name = `test-${randomUUID()}`
  const url = new URL(databaseUrl())
  url.searchParams.set('application_name', name)
  const settings = { databaseUrl: url.toString(), databasePool: 4 }
  const own = openDatabase(settings, log)
  t.teardown(() => own.close())
  await Promise.all([own.ping(), own.ping(), own.ping()])
  const running = failureStatus(own.query({ text: 'select pg_sleep(10)', values: [] }))
  const ended = () =>
    database.query<{ ended: boolean }>({
      text: `select pg_terminate_backend(pid) as ended from pg_stat_activity
        where application_name = $1`,
      values: [name],
    })
  const deadline = Date.now() + 30_000
  while ((await ended()).length > 0 && Date.now() < deadline);
  t.equal(await running, 503)
  while ((await failureStatus(own.ping())) === 503 && Date.now() < deadline);
  for (let i = 0; i < 8; i++)
    t.equal(await failureStatus(own.ping()), undefined, 'all are replaced')
})

t.test('returns 504 for a statement timeout, and leaks no text of other errors', async (t) => {
  const slow = database.transaction(async (connection) => {
    await connection.query({ text: 'set local statement_timeout = 50', values: [] })
    await connection.query({ text: 'select pg_sleep(5)', values: [] })
  })
  t.equal(await failureStatus(slow), 504)
  await t.rejects(database.query({ text: 'select $1::uuid', values: ['a secret'] }), {
    name: 'Error',
    message: /^PostgreSQL refused select \$1::uuid: SQLSTATE 22P02$/,
  })
})

t.test('returns a retryable 503 for a read that waits too long for a lock', async (t) => {
  const table = `held_${randomUUID().replaceAll('-', '')}`
  await database.query({ text: `create table ${table} ()`, values: [] })
  t.teardown(() => database.query({ text: `drop table ${table}`, values: [] }))
  const read = { text: `select * from ${table}`, values: [] }
  await database.transaction(async (connection) => {
    await connection.query({ text: `lock table ${table} in access exclusive mode`, values: [] })
    const failure = await database.query(read).catch((error: unknown) => error)
    t.ok(failure instanceof HttpError)
    t.match(failure, {
      status: 503,
      headers: { 'Retry-After': '2' },
      outcome: { id: 'unavailable', issue: [{ code: 'transient' }] },
    })
  })
  t.same(await database.query(read), [])
})

t.test('isolates a snapshot transaction from concurrent commits', async (t) => {
  const mrn = randomUUID()
  const seen = (oneState: boolean) =>
    repository.transaction(
      async (inner) => {
        const before = (await inner.search(member, byMrn(mrn))).versions.length
        await repository.create(member, aPatient(mrn))
        return (await inner.search(member, byMrn(mrn))).versions.length - before
      },
      { principal: member, conditions: [byMrn(mrn)], oneState },
    )
  t.equal(await seen(true), 0)
  t.equal(await seen(false), 1)
  t.equal(await countByMrn(mrn), 2)
})

t.test('retries a snapshot transaction after a write conflict', async (t) => {
  const { id } = await repository.create(member, aPatient(randomUUID()))
  let tries = 0
  await repository.transaction(
    async (inner) => {
      tries += 1
      await inner.search(member, byMrn('none'))
      if (tries === 1) {
        const other = { ...aPatient('other'), id, multipleBirthInteger: 1 }
        await repository.update(member, other)
      }
      await inner.patch(member, { type: 'Patient', id }, (current) => ({
        ...current,
        multipleBirthInteger: Number(current.multipleBirthInteger) + 1,
      }))
    },
    { principal: member, conditions: [], oneState: true },
  )
  t.equal(tries, 2)
  const { content = '' } = await repository.read(member, 'Patient', id)
  t.match(JSON.parse(content), { multipleBirthInteger: 2 }, 'neither change is lost')
})

t.test('releases condition locks at the end of the transaction, on any outcome', async (t) => {
  const mrn = randomUUID()
  const locks = { principal: member, conditions: [byMrn(mrn)], oneState: true }
  const failure = repository.transaction(async (inner) => {
    await inner.search(member, byMrn(mrn))
    await inner.read(member, 'Patient', randomUUID())
  }, locks)
  t.equal(await failureStatus(failure), 404)
  const other = await openTestStore(t)
  const written = await Promise.all(
    [repository, other.repository].map((one) =>
      one.createConditional(member, aPatient(mrn), byMrn(mrn)),
    ),
  )
  t.equal(new Set(written.map(({ id }) => id)).size, 1)
})

t.test('does not commit after an ignored failure', async (t) => {
  const mrn = randomUUID()
  const work = repository.transaction(async (inner) => {
    await inner.create(member, aPatient(mrn))
    await database.transaction(async (connection) => {
      void connection.query({ text: 'select 1/0', values: [] }).catch(() => undefined)
    })
  })
  await t.rejects(work, { code: '22012' })
  t.equal(await countByMrn(mrn), 0)
})
