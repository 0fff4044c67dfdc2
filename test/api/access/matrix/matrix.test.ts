/**
 * Policy shapes × access paths, with the outcome of each cell. Clinics A and B have a patient each. Imports the
 * compiler of policies, to give a caller rules without a membership.
 */
import t from 'tap'
import { compilePolicies } from '../../../../shared/access/compile.ts'
import { policyVariables } from '../../../../shared/access/criteria.ts'
import { openBotica } from '../../../fixtures/botica.ts'
import { at, openClinics } from '../../../fixtures/policy/clinics.ts'
import { type Ask, asking, idsIn } from '../../../fixtures/policy/policy.ts'
import { anObservation, aPatient } from '../../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin, services } = botica

const { a, b, inClinic, shapes: SHAPES, which } = await openClinics(botica)
const [clinicA, clinicB] = [a.clinic, b.clinic]

const found = async (ask: Ask, path: string): Promise<string> => {
  const { status, body } = await ask('GET', path)
  return status === 200 ? which(idsIn(body)) : String(status)
}
const status = async (reply: Promise<{ status: number }>) => String((await reply).status)
const entryStatus = async (ask: Ask, type: string, request: object, resource?: object) => {
  const entry = [{ request, ...(resource === undefined ? {} : { resource }) }]
  const { status, body } = await ask('POST', '', { resourceType: 'Bundle', type, entry })
  return status === 200 ? String(body.entry[0].response.status).slice(0, 3) : String(status)
}
const SAME = 'identifier=urn:matrix|b'

/** Access path → outcome per shape, in order. Writes to B use B itself. */
const CELLS: readonly (readonly [
  way: string,
  outcomes: string,
  run: (ask: Ask) => Promise<string>,
])[] = [
  ['read A', '200 200 200 403 403', (ask) => status(ask('GET', `Patient/${a.patient.id}`))],
  ['read B', '200 404 404 403 403', (ask) => status(ask('GET', `Patient/${b.patient.id}`))],
  [
    'vread B',
    '200 404 404 403 403',
    (ask) => status(ask('GET', `Patient/${b.patient.id}/_history/1`)),
  ],
  [
    'history B',
    '200 404 404 403 403',
    (ask) => status(ask('GET', `Patient/${b.patient.id}/_history`)),
  ],
  ['read b', '200 404 404 403 403', (ask) => status(ask('GET', `Observation/${b.observation.id}`))],
  ['history of the type', 'AB A A 403 403', (ask) => found(ask, 'Patient/_history')],
  ['search', 'AB A A 403 403', (ask) => found(ask, 'Patient')],
  ['search by id', 'B - - 403 403', (ask) => found(ask, `Patient?_id=${b.patient.id}`)],
  ['search by value', 'B - - 403 403', (ask) => found(ask, `Patient?${SAME}`)],
  ['not', 'AB A A 403 403', (ask) => found(ask, 'Patient?gender:not=other')],
  ['missing', 'AB A A 403 403', (ask) => found(ask, 'Patient?deceased:missing=false')],
  ['_filter', 'B - - 403 403', (ask) => found(ask, 'Patient?_filter=identifier eq urn:matrix|b')],
  ['sort', 'ab a a 403 403', (ask) => found(ask, 'Observation?_sort=code')],
  ['chain', 'b - - 403 403', (ask) => found(ask, `Observation?subject:Patient.${SAME}`)],
  ['_has', 'B - - 403 403', (ask) => found(ask, `Patient?_has:Observation:subject:${SAME}`)],
  [
    '_include',
    'ABab Aa Aa 403 403',
    (ask) => found(ask, 'Observation?_include=Observation:subject'),
  ],
  [
    '_revinclude',
    'ABab Aa Aa 403 403',
    (ask) => found(ask, 'Patient?_revinclude=Observation:subject'),
  ],
  ['several types', 'ABab Aa Aa 403 403', (ask) => found(ask, '?_type=Patient,Observation')],
  ['compartment', 'b - - 403 403', (ask) => found(ask, `Patient/${b.patient.id}/Observation`)],
  [
    '$everything of B',
    '200 404 404 403 403',
    (ask) => status(ask('GET', `Patient/${b.patient.id}/$everything`)),
  ],
  [
    'total',
    '1 0 0 undefined undefined',
    async (ask) => String((await ask('GET', `Patient?_summary=count&${SAME}`)).body.total),
  ],
  ['Binary of B', '200 404 404 403 403', (ask) => status(ask('GET', `Binary/${b.binary.id}`))],
  ['Binary of A', '200 200 200 403 403', (ask) => status(ask('GET', `Binary/${a.binary.id}`))],
  [
    'batch read of B',
    '200 404 404 403 403',
    (ask) => entryStatus(ask, 'batch', { method: 'GET', url: `Patient/${b.patient.id}` }),
  ],
  [
    'update without a change',
    '200 404 403 403 403',
    (ask) => status(ask('PUT', `Patient/${b.patient.id}`, b.patient)),
  ],
  [
    'update of A to B',
    '200 403 403 403 403',
    async (ask) => {
      const moved = { ...a.patient, ...at(clinicB) }
      const answer = await status(ask('PUT', `Patient/${a.patient.id}`, moved))
      await admin.put(`Patient/${a.patient.id}`, a.patient)
      return answer
    },
  ],
  [
    'patch of B',
    '200 404 403 403 403',
    (ask) =>
      status(
        ask('PATCH', `Patient/${b.patient.id}`, [{ op: 'test', path: '/gender', value: 'male' }]),
      ),
  ],
  [
    'create in A',
    '201 201 403 201 403',
    (ask) => status(ask('POST', 'Patient', aPatient(at(clinicA)))),
  ],
  [
    'create in B',
    '201 403 403 201 403',
    (ask) => status(ask('POST', 'Patient', aPatient(at(clinicB)))),
  ],
  [
    'create of an observation of B',
    '201 403 403 403 403',
    (ask) => status(ask('POST', 'Observation', anObservation(`Patient/${b.patient.id}`))),
  ],
  [
    'conditional create where B matches',
    '200 201 403 403 403',
    async (ask) => {
      const identifier = [{ system: 'urn:matrix', value: 'b' }]
      const body = aPatient({ ...at(clinicA), identifier })
      const reply = await ask('POST', 'Patient', body, { 'if-none-exist': SAME })
      if (reply.status === 201) await admin.del(`Patient/${reply.body.id}`)
      return String(reply.status)
    },
  ],
  [
    'conditional patch of B',
    '200 404 403 403 403',
    (ask) =>
      status(ask('PATCH', `Patient?${SAME}`, [{ op: 'test', path: '/gender', value: 'male' }])),
  ],
  [
    'create in B by a transaction',
    '201 403 403 201 403',
    (ask) =>
      entryStatus(ask, 'transaction', { method: 'POST', url: 'Patient' }, aPatient(at(clinicB))),
  ],
  [
    'create of an observation of A by a transaction',
    '201 201 403 403 403',
    (ask) =>
      entryStatus(
        ask,
        'transaction',
        { method: 'POST', url: 'Observation' },
        anObservation(`Patient/${a.patient.id}`),
      ),
  ],
  [
    'delete of B by a batch',
    '404 404 403 403 403',
    async (ask) => {
      if (ask === free) return '404'
      return entryStatus(ask, 'batch', { method: 'DELETE', url: `Patient/${b.patient.id}` })
    },
  ],
]

const member = await botica.createMember()
const session = await services.principals.forProfile(`ClientApplication/${member.id}`)
if (session === undefined) throw new Error('The member has no session')
const asks = Object.entries(SHAPES).map(([name, entries]) => {
  const policy = { resourceType: 'AccessPolicy', id: name, resource: entries }
  const variables = policyVariables(botica.project.id, '', undefined, [])
  const { rules } = compilePolicies([{ policy, variables }])
  return asking(services, { ...session.principal, rules })
})
const [free] = asks

for (const [way, outcomes, run] of CELLS) {
  t.test(way, async (t) => {
    const expected = outcomes.split(' ')
    for (const [i, name] of Object.keys(SHAPES).entries()) {
      const ask = asks[i]
      if (ask !== undefined) t.equal(await run(ask), expected[i], name)
    }
  })
}

t.test('isolates tenants that use equal identifiers', async (t) => {
  const other = await botica.createTenant()
  const copy = aPatient({ identifier: a.patient.identifier })
  const theirs = await other.admin.create(copy)
  const seen = (body: unknown) => which(idsIn(body))
  for (const path of [
    'Patient',
    'Patient?identifier=urn:matrix|a',
    'Patient/_history',
    '_history',
  ]) {
    t.equal(seen((await other.admin.get(path)).body), '-', path)
  }
  t.equal((await other.admin.get(`Patient/${a.patient.id}`)).status, 404)
  t.equal((await other.admin.del(`Patient/${a.patient.id}`)).status, 404)
  const once = await other.admin.post('Patient', copy, {
    'If-None-Exist': 'identifier=urn:matrix|a',
  })
  t.match(once, { status: 200, body: { id: theirs.id } })
  t.equal((await admin.get(`Patient/${theirs.id}`)).status, 404)
})

t.test('returns the deciding entry and its hidden elements from $explain', async (t) => {
  const policy = await admin.create({
    resourceType: 'AccessPolicy',
    resource: [
      { ...inClinic[0], interaction: ['read', 'search'], hiddenFields: ['telecom'] },
      { resourceType: 'Encounter' },
    ],
  })
  const body = { name: 'Explained', accessPolicy: { reference: `AccessPolicy/${policy.id}` } }
  const client = await botica.superAdmin.post(`/admin/projects/${botica.project.id}/client`, body)
  const listed = await admin.get<{ entry: { resource: { id: string } }[] }>(
    `ProjectMembership?profile=ClientApplication/${client.body.id}`,
  )
  const membership = `ProjectMembership/${listed.body.entry[0]?.resource.id}`
  const explain = (parameters: Record<string, string>, as = admin) =>
    as.post('AccessPolicy/$explain', {
      resourceType: 'Parameters',
      parameter: Object.entries({ membership, ...parameters }).map(([name, valueString]) => ({
        name,
        valueString,
      })),
    })
  const told = await explain({ resource: `Patient/${a.patient.id}` })
  t.equal(told.status, 200)
  t.match(told.text, /"valueString":"telecom"/)
  t.match(told.text, `AccessPolicy/${policy.id} entry 0 is the first entry that fits`)
  t.match(told.text, 'No entry allows the interaction with the type')
  t.match(told.text, /"valueString":"\(\(\(r.keys @> array\[\?::bigint\]\) is true\) is true\)"/)
  const hidden = await explain({ resource: `Patient/${b.patient.id}` })
  t.match(hidden.text, 'The criteria of no entry fit')
  const searched = await explain({ search: `Patient?${SAME}` })
  t.match(searched.body, { parameter: [{}, { valueBoolean: true }, {}, { valueInteger: 0 }] })
  t.match((await explain({ search: 'Patient?phone=1' })).body, {
    parameter: [{}, { valueBoolean: false }],
  })
  t.equal((await explain({})).status, 400)
  t.equal((await explain({ search: 'Patient' }, member.client)).status, 403)
})
