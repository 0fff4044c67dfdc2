/**
 * Default policies, their restriction by scopes, and the right to write policies. Imports the restriction of rules,
 * to compare it with all rules of a policy.
 */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import type { Principal } from '../../../shared/access/principal.ts'
import { narrowRules } from '../../../shared/access/scopes.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { type Client, signIn } from '../../fixtures/client.ts'
import {
  type Ask,
  asking,
  changeMembership,
  idsIn,
  memberUnder,
} from '../../fixtures/policy/policy.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin, superAdmin, services, project } = botica

const [own, other] = await Promise.all([admin.create(aPatient()), admin.create(aPatient())])
const [mine, theirs] = await Promise.all(
  [own, other].map(({ id }) => admin.create(anObservation(`Patient/${id}`))),
)
const relative = await admin.create({
  resourceType: 'RelatedPerson',
  patient: { reference: `Patient/${own.id}` },
})
const encounter = await admin.create({
  resourceType: 'Encounter',
  status: 'finished',
  class: { code: 'AMB' },
  subject: { reference: `Patient/${own.id}` },
})

async function readPrincipal(profile: string, fields: object = {}): Promise<Principal> {
  const user = await superAdmin.create({ resourceType: 'User', firstName: 'A', lastName: 'B' })
  const { id } = await superAdmin.create({
    resourceType: 'ProjectMembership',
    meta: { project: project.id },
    project: { reference: `Project/${project.id}` },
    user: { reference: `User/${user.id}` },
    profile: { reference: profile },
    ...fields,
  })
  const session = await services.principals.forMembership(id)
  if (session === undefined) throw new Error(`${profile} has no session`)
  return session.principal
}

/** Under a scope, with a patient in context. */
function within(principal: Principal, scope: string, patient?: string): Ask {
  const rules = narrowRules(principal.rules, scope, patient)
  return asking(services, { ...principal, rules })
}

t.test('lets a patient read its compartment and change nothing', async (t) => {
  const ask = asking(services, await readPrincipal(`Patient/${own.id}`))
  t.equal((await ask('GET', `Patient/${own.id}`)).status, 200)
  t.equal((await ask('GET', `Patient/${other.id}`)).status, 404)
  t.same(idsIn((await ask('GET', 'Observation')).body), [mine?.id])
  t.equal((await ask('GET', `Observation/${theirs?.id}`)).status, 404)
  t.equal((await ask('PUT', `Patient/${own.id}`, { ...own, gender: 'other' })).status, 403)
  t.equal((await ask('POST', 'Observation', anObservation(`Patient/${own.id}`))).status, 403)
  t.equal((await ask('GET', 'ProjectMembership')).status, 403)
  t.equal((await ask('GET', 'AccessPolicy')).status, 200)
  // Denials write AuditEvents that name the patient in the background.
  const types = '_type=Patient,Observation,Encounter,RelatedPerson'
  const everything = await ask('GET', `Patient/${own.id}/$everything?${types}`)
  t.same(idsIn(everything.body), [own.id, mine?.id, encounter.id, relative.id].sort())
  t.equal((await ask('GET', `Patient/${other.id}/$everything`)).status, 404)
})

t.test('lets a relative read the records of the patient', async (t) => {
  const ask = asking(services, await readPrincipal(`RelatedPerson/${relative.id}`))
  t.equal((await ask('GET', `Patient/${own.id}`)).status, 200)
  t.equal((await ask('GET', `RelatedPerson/${relative.id}`)).status, 200)
  t.same(idsIn((await ask('GET', 'Observation')).body), [mine?.id])
  t.equal((await ask('GET', `Patient/${other.id}`)).status, 404)
})

t.test('resolves variables to the profile and the patient', async (t) => {
  const entries = [
    { resourceType: 'Patient', criteria: 'Patient?_id=%patient.id' },
    { resourceType: 'Observation', criteria: 'Observation?subject=%profile' },
  ]
  const policy = await admin.create({ resourceType: 'AccessPolicy', resource: entries })
  const access = [{ policy: { reference: `AccessPolicy/${policy.id}` } }]
  const ask = asking(services, await readPrincipal(`Patient/${own.id}`, { access }))
  t.equal((await ask('GET', `Patient/${own.id}`)).status, 200)
  t.equal((await ask('GET', `Patient/${other.id}`)).status, 404)
  t.same(idsIn((await ask('GET', 'Observation')).body), [mine?.id])
  t.equal((await ask('POST', 'Observation', anObservation(`Patient/${own.id}`))).status, 201)
  t.equal((await ask('POST', 'Observation', anObservation(`Patient/${other.id}`))).status, 403)
})

t.test('narrows a policy by scopes and never widens it', async (t) => {
  const practitioner = await admin.create({ resourceType: 'Practitioner' })
  const free = await readPrincipal(`Practitioner/${practitioner.id}`)
  const observations = within(free, 'patient/Observation.rs', own.id)
  t.equal((await observations('GET', `Patient/${own.id}`)).status, 403)
  t.equal((await observations('GET', `Observation/${mine?.id}`)).status, 200)
  t.equal((await observations('GET', `Observation/${theirs?.id}`)).status, 404)
  t.equal((await observations('DELETE', `Observation/${mine?.id}`)).status, 403)
  const all = within(free, 'patient/*.rs', own.id)
  t.match(await all('GET', `Observation?subject=Patient/${other.id}`), {
    status: 200,
    body: { entry: undefined },
  })
  t.equal((await all('GET', 'ProjectMembership')).status, 403)
  t.equal((await within(free, 'patient/*.rs')('GET', 'Observation')).status, 403)
  const final = within(free, 'user/Observation.rs?status=amended')
  t.same(idsIn((await final('GET', 'Observation')).body), [])
  const patient = await readPrincipal(`Patient/${own.id}`)
  const wide = within(patient, 'user/*.cruds')
  t.equal((await wide('PUT', `Patient/${own.id}`, own)).status, 403)
  t.equal((await wide('GET', `Patient/${other.id}`)).status, 404)
  const administrator = { ...free, isProjectAdmin: true }
  t.equal((await within(administrator, 'user/Patient.rs')('GET', 'ProjectMembership')).status, 403)
  t.equal((await within(administrator, 'openid')('GET', 'ProjectMembership')).status, 200)
})

t.test('denies GraphQL to members without read access', async (t) => {
  const practitioner = await admin.create({ resourceType: 'Practitioner' })
  const client = { ...(await readPrincipal(`Practitioner/${practitioner.id}`)), user: undefined }
  const query = '$graphql?query={__typename}'
  t.equal((await within(client, 'user/Observation.c')('GET', query)).status, 403)
  t.equal((await within(client, 'user/Observation.r')('GET', query)).status, 200)
})

t.test('rejects an invalid policy and names the entry', async (t) => {
  for (const entry of [
    { resourceType: 'Patiens' },
    { resourceType: 'Patient', criteria: 'Observation?code=a' },
    { resourceType: 'Patient', criteria: 'Patient?nmae=a' },
    { resourceType: 'Patient', criteria: 'Patient?name=' },
    { resourceType: 'Patient', criteria: 'Patient?_count=5' },
    { resourceType: 'Patient', criteria: 'Patient?_include=Patient:organization' },
    { resourceType: 'Patient', criteria: 'Patient?' },
    { resourceType: '*', criteria: '*?name=x' },
    { resourceType: 'Observation', criteria: 'Observation?code:in=http://example.org/codes' },
    { resourceType: 'Observation', criteria: 'Observation?_filter=not (code in ValueSet/1)' },
    { resourceType: 'Observation', criteria: 'Observation?subject:Patient.gender:not-in=x' },
    { resourceType: 'Patient', criteria: 'Patient?_has:ProjectMembership:profile:project=1' },
    { resourceType: 'Patient', readonly: true, interaction: ['read', 'update'] },
    { resourceType: 'Patient', hiddenFields: ['nmae'] },
    { resourceType: 'Patient', hiddenFields: ['id'] },
    { resourceType: 'Patient', readonlyFields: ['name.fmaily'] },
    {
      resourceType: 'Patient',
      writeConstraint: [{ language: 'text/fhirpath', expression: 'name.(' }],
    },
  ]) {
    const policy = { resourceType: 'AccessPolicy', resource: [{ resourceType: 'Basic' }, entry] }
    const refused = await admin.post('AccessPolicy', policy)
    t.equal(refused.status, 400, JSON.stringify(entry))
    t.match(refused.body, { issue: [{ expression: ['AccessPolicy.resource[1]'] }] })
  }
  const readonly = { resourceType: 'Patient', readonly: true, interaction: ['read', 'search'] }
  const plain = { resourceType: 'AccessPolicy', resource: [readonly] }
  t.equal((await admin.post('AccessPolicy', plain)).status, 201)
  for (const criteria of [
    'Observation?subject:Patient.organization=%org&status:not=final',
    'Observation?date=ge%from&value-quantity=gt%limit',
    'Observation?_has:Provenance:target:agent=%profile',
    'Observation?_compartment=%patient',
  ]) {
    const entry = { resourceType: 'Observation', criteria }
    const stored = await admin.post('AccessPolicy', {
      resourceType: 'AccessPolicy',
      resource: [entry],
    })
    t.equal(stored.status, 201, criteria)
  }
  const rule = { value: 'example.org', action: 'block' }
  const policy = { resourceType: 'AccessPolicy', ipAccessRule: [rule] }
  t.match(await admin.post('AccessPolicy', policy), {
    status: 400,
    body: { issue: [{ expression: ['AccessPolicy.ipAccessRule[0].value'] }] },
  })
})

t.test('lets only members with an explicit entry write policies', async (t) => {
  const policy = { resourceType: 'AccessPolicy', resource: [{ resourceType: '*' }] }
  const plain = await botica.createMember()
  t.equal((await plain.client.post('AccessPolicy', policy)).status, 403)
  const all = await memberUnder(botica, { entries: [{ resourceType: '*' }] })
  t.equal((await all.client.post('AccessPolicy', policy)).status, 403)
  const named = await memberUnder(botica, { entries: [{ resourceType: 'AccessPolicy' }] })
  t.equal((await named.client.post('AccessPolicy', policy)).status, 201)
})

t.test('decides on addresses by the first matching rule', async (t) => {
  const more = { ipAccessRule: [{ value: '127.0.0.0/8', action: 'block' }] }
  const entries = [{ resourceType: 'Patient' }]
  const blocked = await memberUnder(botica, { entries, more })
  t.equal((await blocked.client.get('Patient')).status, 403)
  await t.rejects(signIn(botica.baseUrl, blocked.id, blocked.secret), /400.*access_denied/)
  const first = { ipAccessRule: [{ value: '127.', action: 'allow' }, ...more.ipAccessRule] }
  const allowed = await memberUnder(botica, { entries, more: first })
  t.equal((await allowed.client.get('Patient')).status, 200)
})

t.test('sets the account of the policy on new resources', async (t) => {
  const clinic = await admin.create({ resourceType: 'Organization', name: 'Clinic' })
  const account = { reference: `Organization/${clinic.id}` }
  const { client } = await memberUnder(botica, {
    entries: [{ resourceType: 'Patient', criteria: 'Patient?_compartment=%clinic' }],
    parameters: [{ name: 'clinic', valueReference: account }],
    more: { compartment: { reference: '%clinic' } },
  })
  const made = await client.post('Patient', aPatient(), { 'X-Medplum': 'extended' })
  t.match(made, { status: 201, body: { meta: { account, accounts: [account] } } })
  t.same(idsIn((await client.get('Patient')).body), [made.body.id])
  t.equal((await client.get(`Patient/${own.id}`)).status, 404)
})

t.test('takes the account of new resources from the URL for administrators', async (t) => {
  const extended = { 'X-Medplum': 'extended' }
  const account = { reference: 'Organization/clinic' }
  const create = (by: Client, query: string, more = {}) =>
    by.post(`Patient?_account=${query}`, aPatient(), { ...extended, ...more })
  const named = { status: 201, body: { meta: { account, accounts: [account] } } }
  t.match(await create(admin, account.reference), named)
  const condition = { 'If-None-Exist': `identifier=${randomUUID()}` }
  t.match(await create(admin, account.reference, condition), named)
  t.equal((await create(admin, 'clinic')).status, 400)
  const url = `Patient?_account=${account.reference}`
  const entry = [{}, { ifNoneExist: `identifier=${randomUUID()}` }].map((more) => ({
    request: { method: 'POST', url, ...more },
    resource: aPatient(),
  }))
  for (const type of ['batch', 'transaction']) {
    const made = await admin.post('', { resourceType: 'Bundle', type, entry }, extended)
    const ours = { resource: { meta: { account } } }
    t.match(made, { status: 200, body: { entry: [ours, type === 'batch' ? ours : {}] } })
  }
  const { client } = await botica.createMember()
  t.match(await create(client, account.reference), {
    status: 201,
    body: { meta: { account: undefined } },
  })
})

t.test('applies a changed policy immediately in the process that renews sessions', async (t) => {
  const { client, id } = await memberUnder(botica, { entries: [{ resourceType: 'Patient' }] })
  t.equal((await client.get('Patient')).status, 200)
  const policy = await admin.create({
    resourceType: 'AccessPolicy',
    resource: [{ resourceType: 'Encounter' }],
  })
  const access = [{ policy: { reference: `AccessPolicy/${policy.id}` } }]
  await changeMembership(botica, `ClientApplication/${id}`, { access })
  t.equal((await client.get('Patient')).status, 403)
  t.equal((await client.get('Encounter')).status, 200)
})
