/**
 * `Project.checkReferencesOnWrite`: a reference resolves only to resources that the caller may read. Imports the
 * compiler of policies, to give a caller rules without a membership.
 */
import t from 'tap'
import { compilePolicies } from '../../../shared/access/compile.ts'
import { policyVariables } from '../../../shared/access/criteria.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { type Ask, asking, type Entry } from '../../fixtures/policy/policy.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin, services } = botica
const member = await botica.createMember()
const session = await services.principals.forProfile(`ClientApplication/${member.id}`)
if (session === undefined) throw new Error('The member has no session')
const { principal } = session
const project = { ...principal.project, checkReferencesOnWrite: true }

function under(...entries: readonly Entry[]): Ask {
  const policy = { resourceType: 'AccessPolicy', id: 'p', resource: entries }
  const variables = policyVariables(botica.project.id, '', undefined, [])
  const { rules } = compilePolicies([{ policy, variables }])
  return asking(services, { ...principal, project, rules })
}

const doctor = await admin.create({ resourceType: 'Practitioner', name: [{ family: 'Seen' }] })
const [seen, unseen] = await Promise.all(
  [{ generalPractitioner: [{ reference: `Practitioner/${doctor.id}` }] }, {}].map((fields) =>
    admin.create(aPatient({ birthDate: '1950-01-01', gender: 'male', ...fields })),
  ),
)
const gone = await admin.create(aPatient({}))
await admin.del(`Patient/${gone.id}`)
const refused = {
  status: 400,
  body: {
    issue: [
      {
        details: { text: 'Invalid reference (Not found)' },
        expression: ['Observation.subject'],
      },
    ],
  },
}

const CRITERIA = [
  `Patient?general-practitioner=Practitioner/${doctor.id}`,
  'Patient?general-practitioner:Practitioner.family=seen',
  `Patient?_id=${seen?.id}`,
]
for (const criteria of CRITERIA) {
  t.test(`rejects references to hidden targets: ${criteria}`, async (t) => {
    const ask = under({ resourceType: 'Observation' }, { resourceType: 'Patient', criteria })
    const about = (id: string | undefined) => anObservation(`Patient/${id}`)
    const made = await ask('POST', 'Observation', about(seen?.id))
    t.equal(made.status, 201)
    const [hidden, deleted] = [unseen?.id, gone.id].map((id) => about(id))
    t.match(await ask('POST', 'Observation', hidden), refused)
    t.same(
      (await ask('POST', 'Observation', hidden)).body,
      (await ask('POST', 'Observation', deleted)).body,
    )
    const { id } = made.body
    t.match(await ask('PUT', `Observation/${id}`, { ...hidden, id }), refused)

    const entry = [seen, unseen].map((patient) => ({
      request: { method: 'POST', url: 'Observation' },
      resource: about(patient?.id),
    }))
    const bundle = { resourceType: 'Bundle', entry }
    t.equal((await ask('POST', '', { ...bundle, type: 'transaction' })).status, 400)
    const batch = await ask('POST', '', { ...bundle, type: 'batch' })
    t.match(batch.body.entry, [{ response: { status: '201' } }, { response: { status: '400' } }])
  })
}

t.test('rejects references to types that the caller may not read', async (t) => {
  const ask = under({ resourceType: 'Observation' })
  t.match(await ask('POST', 'Observation', anObservation(`Patient/${seen?.id}`)), refused)
})

t.test('continues a history by a cursor that reveals nothing', async (t) => {
  const ask = under({ resourceType: 'Patient', criteria: CRITERIA[0] ?? '' })
  const found: string[] = []
  let path: string | undefined = 'Patient/_history?_count=1'
  while (path !== undefined) {
    const { status, body } = await ask('GET', path)
    t.equal(status, 200)
    for (const { resource } of body.entry ?? []) found.push(resource.id)
    const next = body.link.find(({ relation }: { relation: string }) => relation === 'next')?.url
    path = next && `Patient/_history${new URL(next).search}`
    const cursor = path && new URLSearchParams(path.split('?')[1]).get('_cursor')
    const text = Buffer.from(cursor ?? '', 'base64url').toString('latin1')
    t.notOk(text.includes(unseen?.id ?? ''), 'no id is to be read in it')
  }
  t.same([...new Set(found)], [seen?.id])
  const other = Buffer.from(JSON.stringify([new Date(), 1, seen?.id, 1])).toString('base64url')
  t.equal((await ask('GET', `Patient/_history?_cursor=${other}`)).status, 400)
})
