/** `X-Medplum-On-Behalf-Of`: the rights are another member's, the author is the caller, `meta` names both. */
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Meta, Resource } from '../../fixtures/fhir.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  // Workers of other files would take the requests.
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin, adminCredentials } = botica
const DONE_MS = 60_000

const target = await memberUnder(botica, {
  entries: [{ resourceType: 'Patient', criteria: 'Patient?gender=female' }],
})
const EXTENDED = { 'X-Medplum': 'extended' }
const member = { reference: `ClientApplication/${target.id}` }
const ACTING = { 'X-Medplum-On-Behalf-Of': member.reference, ...EXTENDED }
const woman = aPatient({ gender: 'female' })
const readMeta = async (id = '', client = admin): Promise<Meta> =>
  (await client.get(`Patient/${id}`, EXTENDED)).body.meta ?? {}
const BOTH = {
  author: { reference: `ClientApplication/${adminCredentials.id}` },
  onBehalfOf: member,
}

t.test('names both the administrator and the member on a write', async (t) => {
  const made = await admin.post('Patient', woman, ACTING)
  t.match(made, { status: 201, body: { meta: BOTH } })
  t.match(await readMeta(made.body.id, target.client), BOTH)
  const plain = await admin.get(`Patient/${made.body.id}`)
  t.notOk(plain.body.meta?.onBehalfOf, 'shows onBehalfOf only on request')
  const entry = [{ request: { method: 'POST', url: 'Patient' }, resource: woman }]
  const bundle = { resourceType: 'Bundle', type: 'transaction', entry }
  const sent = await admin.post<{ entry: { resource: Resource }[] }>('', bundle, ACTING)
  t.match(sent.body.entry[0]?.resource.meta, BOTH)
  t.equal((await admin.post('Patient', aPatient({ gender: 'male' }), ACTING)).status, 403)
})

t.test('names the represented member on each version and rejects forged names', async (t) => {
  const { id } = await admin.create({ ...woman, meta: { onBehalfOf: member } })
  t.notOk((await readMeta(id)).onBehalfOf)
  const patch = [{ op: 'add', path: '/active', value: true }]
  t.match((await admin.patch(`Patient/${id}`, patch, ACTING)).body.meta, BOTH)
  const again = await admin.put(`Patient/${id}`, (await admin.get(`Patient/${id}`)).body)
  t.match(again.body.meta, { versionId: '2' }, 'stores no version for equal content')
  const own = await admin.put(`Patient/${id}`, { ...again.body, active: false }, EXTENDED)
  t.match(own.body.meta, { versionId: '3', author: BOTH.author })
  t.notOk(own.body.meta?.onBehalfOf)
})

t.test('writes an asynchronous request for the same member', async (t) => {
  const identifier = [{ system: 'urn:later', value: 'acting' }]
  const entry = [
    { request: { method: 'POST', url: 'Patient' }, resource: { ...woman, identifier } },
  ]
  const bundle = { resourceType: 'Bundle', type: 'batch', entry }
  const later = { ...ACTING, Prefer: 'respond-async' }
  t.equal((await admin.post('', bundle, later)).status, 202)
  const found = () =>
    admin.get<{ entry?: { resource: Resource }[] }>('Patient?identifier=urn:later|acting', EXTENDED)
  await until(async () => (await found()).body.entry?.length === 1, DONE_MS)
  t.match((await found()).body.entry?.[0]?.resource.meta, BOTH)
})
