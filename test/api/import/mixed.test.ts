/** Imports of new and existing resources, with equal results on every write path. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin } = botica
const DONE_MS = 120_000

interface Status {
  readonly output: readonly Readonly<Record<string, number>>[]
  readonly error: readonly { readonly url: string; readonly count: number }[]
}

async function imported(type: string, lines: readonly Resource[], caller = admin): Promise<Status> {
  const text = lines.map((line) => `${JSON.stringify(line)}\n`).join('')
  const headers = { 'Content-Type': 'application/fhir+ndjson' }
  const binary = await caller.post('Binary', text, headers)
  const part = [
    { name: 'type', valueCode: type },
    { name: 'url', valueUrl: `Binary/${binary.body.id}` },
  ]
  const parameter = [{ name: 'input', part }]
  const begun = await caller.post('$import', { resourceType: 'Parameters', parameter })
  t.equal(begun.status, 202, begun.text)
  let status: Status | undefined
  await until(async () => {
    const answer = await caller.get<Status>(begun.headers.get('content-location') ?? '')
    if (answer.status === 200) status = answer.body
    return status !== undefined
  }, DONE_MS)
  if (status === undefined) throw new Error('The import did not end')
  return status
}

const patients = (count: number): (Resource & { readonly id: string })[] =>
  Array.from({ length: count }, () => ({ ...aPatient(), id: randomUUID() }))

t.test('updates existing resources and creates the others', async (t) => {
  const given = patients(1200)
  const there = [given[3], given[700], given[1199]].flatMap((patient) => patient ?? [])
  await imported('Patient', there)

  const lines = given.map((patient) =>
    there.includes(patient) ? { ...patient, active: true } : patient,
  )
  const { output, error } = await imported('Patient', lines)

  t.match(output, [{ count: 1200, created: 1197, updated: 3, unchanged: 0 }])
  t.same(error, [])
  for (const { id } of there) {
    const { body } = await admin.get(`Patient/${id}`)
    t.match(body, { active: true, meta: { versionId: '2' } })
  }
  const history = await admin.get<{ total: number }>(`Patient/${there[1]?.id}/_history`)
  t.equal(history.body.total, 2)
})

t.test('writes lines of one resource sequentially', async (t) => {
  const given = patients(40)
  const later = given.slice(10, 12).map((patient) => ({ ...patient, active: true }))

  const { output, error } = await imported('Patient', [...given, ...later])

  t.match(output, [{ count: 42, created: 40, updated: 2 }])
  t.same(error, [])
  for (const { id } of later) {
    const { body } = await admin.get(`Patient/${id}`)
    t.match(body, { active: true, meta: { versionId: '2' } })
  }
})

t.test('restores a deleted resource with its history', async (t) => {
  const [gone, fresh] = patients(2)
  await imported(
    'Patient',
    [gone].flatMap((patient) => patient ?? []),
  )
  await admin.del(`Patient/${gone?.id}`)

  const { output } = await imported(
    'Patient',
    [gone, fresh].flatMap((patient) => patient ?? []),
  )

  t.match(output, [{ count: 2, created: 1, updated: 1 }])
  t.match((await admin.get(`Patient/${gone?.id}`)).body, { meta: { versionId: '3' } })
})

t.test('copies the accounts of patients to their observations', async (t) => {
  const [holder, plain] = [
    await admin.post<Resource & { id: string }>(
      'Patient',
      aPatient({ meta: { accounts: [{ reference: 'Organization/a' }] } }),
      { 'X-Medplum': 'extended' },
    ),
    await admin.post<Resource & { id: string }>('Patient', aPatient()),
  ]
  const lines = [holder, plain, plain, holder].map(({ body }) => ({
    ...anObservation(`Patient/${body.id}`),
    id: randomUUID(),
  }))

  const { output } = await imported('Observation', lines)

  t.match(output, [{ created: 4 }])
  const found = await admin.get<{ entry: { resource: Resource }[] }>(
    'Observation?_compartment=Organization/a',
  )
  t.same(
    found.body.entry.map(({ resource }) => resource.id).sort(),
    [lines[0]?.id, lines[3]?.id].sort(),
  )
})

const organization = (partOf: string | undefined, value = randomUUID()) => ({
  resourceType: 'Organization',
  id: randomUUID(),
  name: value,
  identifier: [{ system: 'urn:mixed', value }],
  ...(partOf === undefined ? {} : { partOf: { reference: partOf } }),
})
const criteria = (value: string) => `Organization?identifier=urn:mixed|${value}`

t.test('resolves conditional references to earlier and later lines of a file', async (t) => {
  const [root, middle, last] = [randomUUID(), randomUUID(), randomUUID()]
  const many = Array.from({ length: 1200 }, () => organization(undefined))
  const lines = [
    organization(criteria(middle)),
    organization(criteria(root), middle),
    organization(undefined, root),
    organization(criteria(root)),
    ...many,
    organization(criteria(many.at(-1)?.name ?? '')),
    organization(criteria(root), last),
    organization(criteria(last)),
  ]
  const meant = [1, 2, undefined, 2, ...many.map(() => undefined), 1203, 2, 1205]

  const { output, error } = await imported('Organization', lines)

  t.same(error, [])
  t.match(output, [{ created: lines.length }])
  for (const [i, { id }] of lines.entries()) {
    const target = meant[i]
    if (target === undefined) continue
    const { body } = await admin.get(`Organization/${id}`)
    t.match(body.partOf, { reference: `Organization/${lines[target]?.id}` }, `line ${i + 1}`)
  }
})

t.test('keeps the last line of a resource whose earlier line waits for a target', async (t) => {
  const value = randomUUID()
  const first = organization(criteria(value))
  const lines = [
    first,
    { ...organization(undefined), id: first.id },
    organization(undefined, value),
  ]

  const { output, error } = await imported('Organization', lines)

  t.match(output, [{ created: 2, updated: 0 }])
  t.match(error, [{ count: 1 }])
  const { body } = await admin.get(`Organization/${first.id}`)
  t.match(body, { name: lines[1]?.name, partOf: undefined, meta: { versionId: '1' } })
})

t.test('finds the targets of literal references in the same file', async (t) => {
  const { admin: owner, project } = await botica.createTenant()
  const path = `Project/${project.id}`
  const { body } = await botica.superAdmin.get(path)
  const strict = { ...body, checkReferencesOnWrite: true }
  t.equal((await botica.superAdmin.put(path, strict)).status, 200)
  await until(async () => {
    const refused = await owner.post('Observation', anObservation('Patient/none'))
    return refused.status === 400
  }, DONE_MS)
  const root = organization(undefined)
  const reference = `Organization/${root.id}`
  const many = Array.from({ length: 1200 }, () => organization(undefined))
  const lines = [
    organization(reference),
    ...many.slice(0, 600),
    { ...root },
    ...many.slice(600),
    organization(`Organization/${many.at(-1)?.id}`),
    organization(reference),
    organization('Organization/none'),
  ]

  const { output, error } = await imported('Organization', lines, owner)

  t.match(output, [{ created: lines.length - 1 }])
  t.match(error, [{ count: 1 }])
})
