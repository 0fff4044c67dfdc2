import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { createClient } from '../../fixtures/client.ts'
import { type Exported, exportAll, idsIn } from '../../fixtures/exports/exports.ts'
import { clientUnder } from '../../fixtures/policy/policy.ts'
import { anObservation, anOrganization, aPatient } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin, baseUrl } = botica
const { admin: stranger } = await botica.createTenant()

const [mine, theirs] = await Promise.all([
  admin.create(aPatient({ birthDate: '1900-01-01', telecom: [{ system: 'phone', value: '1' }] })),
  admin.create(aPatient({ birthDate: '2000-01-01', telecom: [{ system: 'phone', value: '2' }] })),
])
const [pulse] = await Promise.all([
  admin.create(anObservation(`Patient/${mine.id}`)),
  admin.create(anObservation(`Patient/${theirs.id}`)),
])
const foreign = await stranger.create(aPatient({ birthDate: '1900-01-01' }))
const group = await admin.create({
  resourceType: 'Group',
  type: 'person',
  actual: true,
  member: [mine, theirs, foreign].map(({ id }) => ({ entity: { reference: `Patient/${id}` } })),
})

const LEVELS = [
  '$export',
  'Patient/$export',
  `Group/${group.id}/$export`,
  `Patient/${mine.id}/$export`,
]
const ONLY_MINE = 'Patient?birthdate=lt1950'

t.test('applies policy criteria at every level', async (t) => {
  const client = await clientUnder(
    botica,
    { resourceType: 'Patient', criteria: ONLY_MINE },
    { resourceType: 'Observation', criteria: 'Observation?subject:Patient.birthdate=lt1950' },
    { resourceType: 'Group' },
  )
  for (const path of LEVELS) {
    const exported = await exportAll(client, path)
    t.same(idsIn(exported, 'Patient'), [mine.id], path)
    t.same(idsIn(exported, 'Observation'), [pulse.id], path)
  }
  t.equal((await client.get(`Patient/${theirs.id}/$export`)).status, 404)
  t.equal((await client.get('$export?_type=Organization')).status, 403)
})

t.test('omits hidden fields from every line, by the first matching policy entry', async (t) => {
  const client = await clientUnder(
    botica,
    { resourceType: 'Patient', criteria: ONLY_MINE, hiddenFields: ['telecom', 'name.given'] },
    { resourceType: 'Patient', hiddenFields: ['birthDate'] },
  )
  const exported = await exportAll(client, 'Patient/$export')
  const [a, b] = [mine, theirs].map(({ id }) => patientIn(exported, id))
  t.notOk(a?.telecom)
  t.ok(a?.birthDate)
  t.match(a?.name, [{ family: 'Chalmers', given: undefined }])
  t.ok(b?.telecom)
  t.notOk(b?.birthDate)
  for (const { id } of [mine, theirs]) {
    t.same(patientIn(exported, id), (await client.get(`Patient/${id}`)).body)
  }
  const hidden = encodeURIComponent('Patient?telecom=2')
  const found = await exportAll(client, `Patient/$export?_typeFilter=${hidden}`)
  t.same(idsIn(found, 'Patient'), [theirs.id], 'rejects a _typeFilter on a hidden field')
})

t.test('does not reveal the subject of a resource by its presence in an export', async (t) => {
  const blind = await clientUnder(
    botica,
    { resourceType: 'Patient' },
    { resourceType: 'Observation', hiddenFields: ['subject'] },
    { resourceType: 'Group', hiddenFields: ['member'] },
  )
  t.ok(idsIn(await exportAll(blind, '$export?_type=Observation'), 'Observation').includes(pulse.id))
  const ofOne = await exportAll(blind, `Patient/${mine.id}/$export`)
  t.same([idsIn(ofOne, 'Patient'), idsIn(ofOne, 'Observation')], [[mine.id], []])
  t.same(idsIn(await exportAll(blind, `Group/${group.id}/$export`), 'Patient'), [])
})

t.test(
  'does not reveal the former subject of a resource by its presence in an export',
  async (t) => {
    const [seen, unseen] = await Promise.all(
      ['amended', 'final'].map((status) =>
        admin.create(anObservation(`Patient/${mine.id}`, { status, valueString: 'before' })),
      ),
    )
    const { manifest } = await exportAll(admin, '$export?_type=Organization')
    const time = encodeURIComponent(manifest.transactionTime)
    for (const { id, status } of [seen, unseen].flatMap((one) => one ?? [])) {
      const after = anObservation(`Patient/${mine.id}`, { id, status, valueString: 'after' })
      t.equal((await admin.put(`Observation/${id}`, after)).status, 200)
    }
    const client = await clientUnder(
      botica,
      { resourceType: 'Patient' },
      {
        resourceType: 'Observation',
        criteria: 'Observation?status=final',
        hiddenFields: ['subject'],
      },
      { resourceType: 'Observation' },
    )
    for (const path of [`Patient/${mine.id}/$export`, 'Patient/$export']) {
      const exported = await exportAll(client, `${path}?_type=Observation&_until=${time}`)
      t.same(idsIn(exported, 'Observation'), [seen?.id], path)
    }
    for (const made of [seen, unseen]) await admin.del(`Observation/${made?.id}`)
  },
)

t.test('follows no reference in a filter that the caller may not follow', async (t) => {
  const client = await clientUnder(
    botica,
    { resourceType: 'Observation' },
    { resourceType: 'Patient', criteria: ONLY_MINE },
  )
  const filter = encodeURIComponent('Observation?subject:Patient.gender=male')
  const exported = await exportAll(client, `$export?_typeFilter=${filter}&_type=Observation`)
  t.same(idsIn(exported, 'Observation'), [pulse.id])
})

t.test('limits an export to the scopes of the token', async (t) => {
  const { id, secret } = await botica.createMember()
  const body = new URLSearchParams({
    grant_type: 'client_credentials',
    client_id: id,
    client_secret: secret,
    scope: 'system/Patient.rs',
  })
  const answer = await fetch(`${baseUrl}oauth2/token`, { method: 'POST', body })
  const { access_token: token } = (await answer.json()) as { access_token: string }
  const client = createClient(baseUrl, token)
  const exported = await exportAll(client, '$export')
  t.same([...exported.resources.keys()], ['Patient'])
  t.same(idsIn(exported, 'Patient'), [mine.id, theirs.id].sort())
  t.equal((await client.get('$export?_type=Observation')).status, 403)
  t.equal((await client.get(`Group/${group.id}/$export`)).status, 403)
})

t.test('exports only the project of the caller', async (t) => {
  const exported = await exportAll(stranger, '$export')
  t.same(idsIn(exported, 'Patient'), [foreign.id])
  for (const path of LEVELS.slice(2)) t.equal((await stranger.get(path)).status, 404, path)
  const ours = await exportAll(admin, `Group/${group.id}/$export`)
  t.notOk(idsIn(ours, 'Patient').includes(foreign.id))
  t.equal(ours.manifest.error[0]?.count, 1, 'reports excluded patients only as a number')
})

t.test('exports every change exactly once over a chain of exports during writes', async (t) => {
  const writing = new AbortController()
  const made: string[] = []
  const writers = Array.from({ length: 3 }, async () => {
    while (!writing.signal.aborted) made.push((await admin.create(anOrganization())).id)
  })
  const seen = new Map<string, number>()
  let since: string | undefined
  const next = async () => {
    const query = since === undefined ? '' : `&_since=${encodeURIComponent(since)}`
    const exported = await exportAll(admin, `$export?_type=Organization${query}`)
    since = exported.manifest.transactionTime
    for (const id of idsIn(exported, 'Organization')) seen.set(id, (seen.get(id) ?? 0) + 1)
  }
  for (let round = 0; round < 5; round++) await next()
  writing.abort()
  await Promise.all(writers)
  await next()
  t.ok(made.length > 5)
  t.same([...seen.keys()].sort(), made.toSorted())
  t.ok([...seen.values()].every((times) => times === 1))
})

function patientIn({ resources }: Exported, id: string) {
  return resources.get('Patient')?.find((one) => one.id === id)
}
