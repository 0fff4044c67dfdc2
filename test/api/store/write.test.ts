/** Imports the parser of JSON, to compare stored texts. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { parseJson } from '../../../shared/fhir/json.ts'
import { parseVersion } from '../../../shared/store/rows/rows.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { countStatements, failureStatus, openTestStore } from '../../fixtures/store/store.ts'

const { database, repository, aMember } = await openTestStore(t)
const member = await aMember()

const aPatient = (more: object = {}): Resource => ({
  resourceType: 'Patient',
  name: [{ family: 'Simpson', given: ['Homer'] }],
  identifier: [{ system: 'urn:mrn', value: randomUUID() }],
  deceasedDateTime: '2030-01-01',
  ...more,
})

const sideRows = (table: 'idx_string' | 'idx_range', id: string) =>
  database.query<{ p: string }>({ text: `select * from ${table} where id = $1`, values: [id] })

t.test('runs create, read, update and delete as one statement each', async (t) => {
  const { id } = await repository.create(member, aPatient())
  const { content = '' } = await repository.read(member, 'Patient', id)
  const next = { ...(JSON.parse(content) as Resource), active: true }

  t.equal(await countStatements(database, () => repository.create(member, aPatient())), 1)
  t.equal(await countStatements(database, () => repository.read(member, 'Patient', id)), 1)
  t.equal(await countStatements(database, () => repository.update(member, next)), 1)
  t.equal(
    await countStatements(database, () => repository.readVersion(member, 'Patient', id, '1')),
    1,
  )
  const page = { count: 10, offset: 0 }
  t.equal(await countStatements(database, () => repository.history(member, 'Patient', id, page)), 1)
  t.equal(await countStatements(database, () => repository.delete(member, 'Patient', id)), 1)
})

t.test('shares few statements between 64 concurrent creates', async (t) => {
  const before = database.statements
  const written = await Promise.all(
    Array.from({ length: 64 }, (_, i) => repository.create(member, aPatient({ active: i > 9 }))),
  )
  t.ok(database.statements - before <= 8, `${database.statements - before} statements`)
  t.equal(new Set(written.map(({ id }) => id)).size, 64)
  const read = await repository.readMany(member, written)
  t.same(
    read.map((version) => version?.content),
    written.map((version) => version.content),
  )
})

t.test('fails only the failing write of a batch', async (t) => {
  const taken = randomUUID()
  await repository.create(member, aPatient({ id: taken }), { keepId: true })
  const results = await Promise.allSettled(
    [randomUUID(), taken, randomUUID(), randomUUID()].map((id) =>
      repository.create(member, aPatient({ id }), { keepId: true }),
    ),
  )
  t.same(
    results.map(({ status }) => status),
    ['fulfilled', 'rejected', 'fulfilled', 'fulfilled'],
  )
  t.match(results[1], { reason: { status: 409 } })
})

t.test('stores id, version and time first and the rest unchanged', async (t) => {
  const text = `{"active":true,"meta":{"versionId":"9","tag":[{"code":"x"}],"project":"p"},"id":"z",
    "resourceType":"Patient","extension":[{"valueDecimal":1.00,"url":"u"}]}`
  const written = await repository.create(member, parseJson(text) as Resource)
  const time = written.lastUpdated.toISOString()
  t.equal(
    written.content,
    `{"resourceType":"Patient","id":"${written.id}","meta":{"versionId":"1","lastUpdated":"${time}",` +
      `"tag":[{"code":"x"}]},"active":true,"extension":[{"valueDecimal":1.00,"url":"u"}]}`,
  )
  const { outcome: _outcome, ...version } = written
  t.same(await repository.read(member, 'Patient', written.id), version)
  t.match(parseVersion(written).meta, {
    project: member.project.id,
    author: { reference: member.profile, display: 'Dr. Test' },
    compartment: [
      { reference: `Project/${member.project.id}` },
      { reference: `Patient/${written.id}` },
    ],
  })
})

t.test('writes nothing for an unchanged update', async (t) => {
  const { id, content = '' } = await repository.create(member, aPatient())
  const members = Object.entries(JSON.parse(content) as Resource)
  const shuffled = Object.fromEntries(members.reverse()) as unknown as Resource
  const before = database.statements
  const same = await repository.update(member, shuffled)
  t.equal(database.statements - before, 1)
  t.match(same, { outcome: 'unchanged', ver: 1, content })
  t.match(await repository.update(member, { ...shuffled, birthDate: '1956' }), {
    outcome: 'updated',
    ver: 2,
    id,
  })
})

t.test('replaces string and date rows on update', async (t) => {
  const { id, content = '' } = await repository.create(member, aPatient())
  const resource = JSON.parse(content) as Resource
  const strings = await sideRows('idx_string', id)
  await repository.update(member, { ...resource, active: true })
  t.same(await sideRows('idx_string', id), strings)
  t.equal((await sideRows('idx_range', id)).length, 1)
  await repository.update(member, {
    ...resource,
    name: [{ family: 'Simpson', given: ['Bart'] }],
    deceasedDateTime: '2030-01-01T10:00:00Z',
  })
  const values = (await sideRows('idx_string', id)).map(
    (row) => (row as unknown as { v: string }).v,
  )
  t.same([...new Set(values)].sort(), ['bart', 'simpson'])
  t.equal((await sideRows('idx_range', id)).length, 1)
  await repository.delete(member, 'Patient', id)
  t.same(await sideRows('idx_string', id), [])
  t.same(await sideRows('idx_range', id), [])
})

t.test('rejects one of two updates with the same If-Match', async (t) => {
  const { id } = await repository.create(member, aPatient())
  const results = await Promise.allSettled(
    ['1950', '1951'].map((birthDate) =>
      repository.update(member, { ...aPatient({ id }), birthDate }, { ifMatch: [1] }),
    ),
  )
  t.same(results.map(({ status }) => status).sort(), ['fulfilled', 'rejected'])
  t.match(
    results.find(({ status }) => status === 'rejected'),
    { reason: { status: 412 } },
  )
})

t.test('applies racing updates without If-Match in order', async (t) => {
  const { id } = await repository.create(member, aPatient())
  const years = ['1950', '1951', '1952']
  const written = await Promise.all(
    years.map((birthDate) => repository.update(member, aPatient({ id, birthDate }))),
  )
  t.same(written.map(({ ver }) => ver).sort(), [2, 3, 4])
  const { versions } = await repository.history(member, 'Patient', id, { count: 10, offset: 0 })
  t.same(
    versions.map(({ ver }) => ver),
    [4, 3, 2, 1],
  )
  const times = versions.map(({ lastUpdated }) => lastUpdated.getTime())
  t.same(
    times,
    times.toSorted((a, b) => b - a),
  )
})

t.test('applies racing patches one after another', async (t) => {
  const { id } = await repository.create(member, aPatient({ multipleBirthInteger: 0 }))
  const add = (current: Resource) => ({
    ...current,
    multipleBirthInteger: Number(current.multipleBirthInteger) + 1,
  })
  await Promise.all([1, 2, 3].map(() => repository.patch(member, { type: 'Patient', id }, add)))
  const { content = '' } = await repository.read(member, 'Patient', id)
  t.equal(JSON.parse(content).multipleBirthInteger, 3)
})

t.test('returns 410 for a deleted resource, keeps its history and allows a restore', async (t) => {
  const { id } = await repository.create(member, aPatient())
  const deletion = await repository.delete(member, 'Patient', id)
  t.match(deletion, { ver: 2, content: undefined })
  t.match(await repository.delete(member, 'Patient', id), { ver: 2 }, 'a second time')
  t.equal(await failureStatus(repository.read(member, 'Patient', id)), 410)
  t.equal(await failureStatus(repository.readVersion(member, 'Patient', id, '2')), 410)
  t.equal(await failureStatus(repository.patch(member, { type: 'Patient', id }, (x) => x)), 410)
  t.match(await repository.readVersion(member, 'Patient', id, '1'), { ver: 1 })
  t.match(await repository.history(member, 'Patient', id, { count: 1, offset: 0 }), {
    total: 2,
    versions: [{ ver: 2, content: undefined, id }],
  })
  t.match(await repository.update(member, aPatient({ id })), { ver: 3, outcome: 'updated' })
  t.match(await repository.read(member, 'Patient', id), { ver: 3 })
})

t.test('returns 404 for an id that never existed', async (t) => {
  for (const id of [randomUUID(), 'no-uuid', '../x', 'x'.repeat(65), '']) {
    t.equal(await failureStatus(repository.read(member, 'Patient', id)), 404)
    t.equal(await failureStatus(repository.delete(member, 'Patient', id)), 404)
    t.equal(
      await failureStatus(repository.history(member, 'Patient', id, { count: 1, offset: 0 })),
      404,
    )
  }
  t.equal(await failureStatus(repository.update(member, aPatient({ id: randomUUID() }))), 404)
  t.equal(await failureStatus(repository.read(member, 'Nothing', 'x')), 400)
  const { id } = await repository.create(member, aPatient())
  for (const ver of ['0', 'x', '2', '99999999999', '1e0']) {
    t.equal(await failureStatus(repository.readVersion(member, 'Patient', id, ver)), 404)
  }
})

t.test('keeps client ids if the Project allows them', async (t) => {
  const chooser = await aMember({}, { updateAsCreate: true })
  const id = `My.Id-${randomUUID().slice(0, 8)}`
  t.match(await repository.update(chooser, aPatient({ id })), { outcome: 'created', id, ver: 1 })
  t.match(await repository.update(chooser, aPatient({ id })), { outcome: 'updated', id, ver: 2 })
  t.match(await repository.read(chooser, 'Patient', id), { id })
  t.equal(
    await failureStatus(repository.update(chooser, aPatient({ id }), { onlyIfAbsent: true })),
    412,
  )
  t.equal(
    await failureStatus(repository.update(chooser, aPatient({ id: 'new' }), { ifMatch: [1] })),
    412,
  )
})

t.test('creates one resource for racing creates under one id', async (t) => {
  const chooser = await aMember({}, { updateAsCreate: true })
  const id = randomUUID()
  const written = await Promise.all(
    [1, 2, 3, 4].map((n) => repository.update(chooser, aPatient({ id, birthDate: `195${n}` }))),
  )
  t.equal(written.filter(({ outcome }) => outcome === 'created').length, 1)
  t.same(written.map(({ ver }) => ver).sort(), [1, 2, 3, 4])
})

t.test('keeps the rows of another type with the same id on delete', async (t) => {
  const chooser = await aMember({}, { updateAsCreate: true })
  const id = randomUUID()
  await repository.update(chooser, aPatient({ id }))
  await repository.update(chooser, {
    resourceType: 'Practitioner',
    id,
    name: [{ family: 'Hibbert' }],
  })
  await repository.delete(chooser, 'Patient', id)
  t.ok((await sideRows('idx_string', id)).length > 0)
})

t.test('grants a unique value to one of several racing writers', async (t) => {
  const unique = [{ scope: 'test', value: randomUUID() }]
  const create = () => repository.create(member, aPatient(), { unique })
  const results = await Promise.allSettled(Array.from({ length: 10 }, create))
  const won = results.flatMap((result) => (result.status === 'fulfilled' ? result.value : []))
  t.equal(won.length, 1)
  t.match(
    results.filter(({ status }) => status === 'rejected'),
    Array.from({ length: 9 }, () => ({ reason: { status: 409 } })),
  )
  const id = won[0]?.id ?? ''
  await repository.update(member, aPatient({ id }), { unique: [{ scope: 'test', value: id }] })
  await t.resolves(create(), 'a value that was given up is free')
  await repository.delete(member, 'Patient', id)
  await t.resolves(
    repository.create(member, aPatient(), { unique: [{ scope: 'test', value: id }] }),
  )
})

t.test('rejects a NUL in any string', async (t) => {
  t.equal(await failureStatus(repository.create(member, aPatient({ gender: 'a\0b' }))), 400)
  await t.resolves(repository.create(member, aPatient({ gender: 'a\\u0000b' })))
})

t.test('shares few statements between 64 concurrent reads', async (t) => {
  const made = await Promise.all(
    Array.from({ length: 64 }, (_, n) =>
      repository.create(member, { resourceType: 'Basic', language: `x-${n}` }),
    ),
  )
  const stranger = await aMember()
  const before = database.statements
  const reads = made.map(({ id }) => repository.read(member, 'Basic', id))
  const strange = repository.read(stranger, 'Basic', made[0]?.id ?? '')
  const missing = repository.read(member, 'Basic', randomUUID())
  t.equal(await failureStatus(strange), 404)
  t.equal(await failureStatus(missing), 404)
  const found = await Promise.all(reads)
  t.strictSame(
    found.map(({ content }) => content),
    made.map(({ content }) => content),
  )
  t.ok(database.statements - before <= 8, `${database.statements - before} statements`)
})
