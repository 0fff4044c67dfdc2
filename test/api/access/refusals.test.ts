/** A denial by a policy writes an AuditEvent with the member, the target and the deciding layer or entry. */
import t from 'tap'
import { type Member, openBotica, until } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { ask } from '../../fixtures/graphql.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'
import { aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin } = botica
const SEEN_MS = 60_000

const patient = await admin.create(aPatient({ gender: 'male' }))
const female = { language: 'text/fhirpath', expression: "gender = 'female'", name: 'women' }
const refusing = () =>
  memberUnder(botica, {
    entries: [
      { resourceType: 'Patient', interaction: ['read', 'search'] },
      { resourceType: 'Patient', writeConstraint: [female] },
    ],
  })

/** Waits for this many AuditEvents about a member and returns them. */
async function readEvents({ id }: Member, count: number): Promise<Resource[]> {
  const query = `AuditEvent?type=rest&agent=ClientApplication/${id}&_sort=_lastUpdated`
  const read = () => admin.get<{ entry?: { resource: Resource }[] }>(query)
  await until(async () => ((await read()).body.entry?.length ?? 0) >= count, SEEN_MS)
  return (await read()).body.entry?.map(({ resource }) => resource) ?? []
}

t.test('records the reason of each denial and withholds it from the caller', async (t) => {
  const member = await refusing()
  const { client, id } = member
  const posted = await client.post('Patient', aPatient({ gender: 'male' }))
  t.match(posted, { status: 403, body: { issue: [{ diagnostics: 'women' }] } })
  t.notMatch(posted.text, 'AccessPolicy/')
  const [event] = await readEvents(member, 1)
  t.match(event, {
    type: { code: 'rest' },
    action: 'C',
    outcome: '4',
    outcomeDesc: /^Forbidden: writeConstraint of AccessPolicy\/\S+ entry 1$/,
    agent: [{ who: { reference: `ClientApplication/${id}` } }, { requestor: false }],
    entity: [{ name: 'POST /Patient' }],
    extension: [{ extension: [{ url: 'requestId' }, { url: 'traceId' }] }],
  })

  t.equal((await client.put(`Patient/${patient.id}`, { ...patient, active: true })).status, 403)
  const entry = [{ request: { method: 'DELETE', url: `Patient/${patient.id}` } }]
  t.equal((await client.post('', { resourceType: 'Bundle', type: 'batch', entry })).status, 200)
  const { body } = await ask(client, '{ EncounterList { id } }')
  t.equal(body.errors?.[0]?.extensions?.code, 'forbidden')
  const all = await readEvents(member, 3)
  const told = all.map(({ action, entity }) => `${action} ${JSON.stringify(entity)}`).sort()
  t.match(told, [/^C .*POST \/Patient/, /^E .*\$graphql/, /^U .*Patient/])
  t.match(
    all.find(({ action }) => action === 'E')?.outcomeDesc,
    'Forbidden: no right to search Encounter',
  )
})

t.test('records equal denials of a member once a minute', async (t) => {
  const member = await refusing()
  const male = aPatient({ gender: 'male' })
  const answers = await Promise.all(
    Array.from({ length: 20 }, () => member.client.post('Patient', male)),
  )
  t.ok(answers.every(({ status }) => status === 403))
  t.equal((await member.client.get('Observation')).status, 403)
  const other = await refusing()
  t.equal((await other.client.post('Patient', male)).status, 403)
  t.equal((await readEvents(other, 1)).length, 1)
  t.equal((await readEvents(member, 2)).length, 2)
})

t.test('records nothing for resources that are merely hidden', async (t) => {
  const member = await memberUnder(botica, {
    entries: [{ resourceType: 'Patient', criteria: 'Patient?gender=female' }],
  })
  t.equal((await member.client.get(`Patient/${patient.id}`)).status, 404)
  t.equal((await member.client.get('Encounter/1')).status, 403)
  const events = await readEvents(member, 1)
  t.match(events, [{ outcomeDesc: 'Forbidden: no right to read Encounter' }])
  t.equal(events.length, 1)
})
