/** Criteria of a requested SMART scope narrow rights; they neither widen them nor test hidden elements and resources. */
import t from 'tap'
import { scopedClient } from '../../fixtures/attacks/scoped.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { type Entry, idsIn, memberUnder } from '../../fixtures/policy/policy.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin, adminCredentials } = botica
const patient = await admin.create(aPatient({ birthDate: '1985-02-03', gender: 'female' }))
await admin.create(anObservation(`Patient/${patient.id}`))
const path = `Patient/${patient.id}`

async function under(entries: readonly Entry[], scope: string) {
  return await scopedClient(botica, await memberUnder(botica, { entries }), scope)
}

t.test('keeps the fields of an entry for a type behind an entry for all types', async (t) => {
  const limited = {
    resourceType: 'Patient',
    hiddenFields: ['birthDate'],
    readonlyFields: ['gender'],
  }
  const entries = [{ resourceType: '*' }, limited]
  for (const scope of ['', 'user/*.cruds', 'user/Patient.cruds', 'user/Patient.cruds user/*.rs']) {
    const client = await under(entries, scope)
    const read = await client.get(path)
    t.equal(read.status, 200, scope)
    t.notMatch(read.text, '1985', scope)
    await client.put(path, { ...patient, gender: 'male' })
    t.match((await admin.get(path)).body, { gender: 'female', birthDate: '1985-02-03' }, scope)
  }
})

t.test('does not let a scope test hidden elements', async (t) => {
  const entries = [
    { resourceType: 'Patient', criteria: 'Patient?gender=female', hiddenFields: ['birthDate'] },
    { resourceType: 'Patient' },
  ]
  for (const criteria of [
    'birthdate=1985-02-03',
    'birthdate=1985-02-04',
    'gender=female&birthdate=gt1980',
    '_filter=birthdate%20gt%201980-01-01',
    '_filter=not%20(birthdate%20lt%201980-01-01)',
  ]) {
    const client = await under(entries, `user/Patient.rs?${criteria}`)
    t.equal((await client.get(path)).status, 403, criteria)
    t.equal((await client.get('Patient')).status, 403, criteria)
  }
  const tagged = [{ resourceType: '*', hiddenFields: ['meta.tag'] }]
  for (const scope of ['user/*.rs?_tag=urn:x|y', 'user/Patient.rs?_tag=urn:x|y']) {
    t.equal((await (await under(tagged, scope)).get('Patient')).status, 403, scope)
  }
  const client = await under(entries, 'user/Patient.rs?gender=female')
  const read = await client.get(path)
  t.equal(read.status, 200)
  t.notMatch(read.text, '1985')
  const other = await under(entries, 'user/Patient.rs?gender=male')
  t.equal((await other.get(path)).status, 404)
})

t.test('does not let a scope test resources that the caller may not read', async (t) => {
  for (const criteria of [
    '_has:Observation:patient:status=final',
    '_has:Observation:patient:_id=x',
    'organization.name=x',
    '_filter=organization.name%20eq%20x',
  ]) {
    const client = await under([{ resourceType: 'Patient' }], `user/Patient.rs?${criteria}`)
    t.equal((await client.get('Patient')).status, 403, criteria)
  }
})

t.test('narrows the registry for administrators', async (t) => {
  await botica.createMember()
  const scope = 'user/ProjectMembership.rs?profile-type=Patient __admin'
  const limited = await scopedClient(botica, adminCredentials, scope)
  t.same(idsIn((await limited.get('ProjectMembership')).body), [])
  const [id] = idsIn((await admin.get('ProjectMembership')).body)
  t.equal((await limited.get(`ProjectMembership/${id}`)).status, 404)
  const all = await scopedClient(botica, adminCredentials, 'user/ProjectMembership.rs __admin')
  t.same(
    idsIn((await all.get('ProjectMembership')).body),
    idsIn((await admin.get('ProjectMembership')).body),
  )
})
