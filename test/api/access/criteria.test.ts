/**
 * Criteria of every kind: a read, a search, a history and a write allow the same resources. Imports the compiler of
 * policies, to give a caller rules without a membership.
 */
import t from 'tap'
import { compilePolicies } from '../../../shared/access/compile.ts'
import { policyVariables } from '../../../shared/access/criteria.ts'
import { openBotica, statementsAsked } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { type Ask, asking, type Entry, idsIn, memberUnder } from '../../fixtures/policy/policy.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin, services } = botica
const member = await botica.createMember()
const session = await services.principals.forProfile(`ClientApplication/${member.id}`)
if (session === undefined) throw new Error('The member has no session')
const { principal } = session

function under(...entries: readonly Entry[]): Ask {
  const policy = { resourceType: 'AccessPolicy', id: 'p', resource: entries }
  const variables = policyVariables(botica.project.id, '', undefined, [])
  const { rules, warnings } = compilePolicies([{ policy, variables }])
  if (warnings.length > 0) throw new Error(warnings.join())
  return asking(services, { ...principal, rules })
}

const mg = (value: number) => ({
  valueQuantity: { value, unit: 'mg', system: 'http://unitsofmeasure.org', code: 'mg' },
})
const patients = await Promise.all(
  [
    { name: [{ family: 'Müller', given: ['Anna Maria'] }], birthDate: '1950-02-03' },
    { name: [{ family: 'Muller-Berg' }], birthDate: '1980' },
    { name: [{ text: 'Zoë van Berg' }], birthDate: '2001-12', deceasedDateTime: '2020-01-01' },
    { name: [{ family: 'Ångström' }], birthDate: undefined },
    { name: [{ family: 'MÜLLER', given: ['Müller'] }], birthDate: '1990' },
  ].map((fields) => admin.create(aPatient(fields))),
)
const subject = `Patient/${patients[0]?.id}`
const observations = await Promise.all(
  [
    { ...mg(5), effectiveDateTime: '2020-05-06', valueString: undefined },
    { ...mg(50.25), effectivePeriod: { start: '2020-01-01', end: '2021-01-01' } },
    { valueQuantity: { value: 7, unit: 'drops' } },
    { valueString: 'none', effectiveInstant: '2022-01-01T10:00:00Z' },
  ].map((fields) =>
    admin.create(anObservation(subject, { effectiveDateTime: undefined, ...fields })),
  ),
)
const of = { Patient: patients, Observation: observations }

const CRITERIA: Readonly<Record<keyof typeof of, readonly string[]>> = {
  Patient: [
    ...['family=mul', 'family:exact=Müller', 'family:contains=erg', 'family:missing=true'],
    ...['name=maria', 'name=zoe berg', 'name:not=mul', 'name=zz,ang', 'name:exact=Anna Maria'],
    ...['birthdate=ge1980', 'birthdate=lt1980', 'birthdate=1980', 'birthdate=ne1980'],
    ...['birthdate=sa1980', 'birthdate=eb1980', 'birthdate=le1980-06', 'birthdate=ap1979,2001-12'],
    ...['birthdate:missing=true', 'birthdate:missing=false', 'death-date=gt2019'],
    ...['death-date:missing=true', 'gender:not=male', 'deceased=true', 'family=mul&birthdate=1950'],
  ],
  Observation: [
    ...['value-quantity=5', 'value-quantity=gt5', 'value-quantity=le7', 'value-quantity=ne5'],
    ...['value-quantity=gt1|http://unitsofmeasure.org|mg', 'value-quantity=gt1||drops'],
    ...['value-quantity=gt1||mg', 'value-quantity:missing=true', 'value-string=non'],
    ...['date=2020', 'date=ge2020-06', 'date=sa2021', 'date=ap2020-05', 'date:missing=true'],
    ...['subject:Patient.family=mul', 'subject:Patient.birthdate=gt1960', 'code:missing=false'],
    ...['subject:Patient.gender:not=x&date=2020', 'patient.name=anna', '_tag=x'],
  ],
}

for (const [type, list] of Object.entries(CRITERIA)) {
  const made = of[type as keyof typeof of]
  for (const criteria of list) {
    t.test(`${type}?${criteria}`, async (t) => {
      const ask = under({ resourceType: type, criteria: `${type}?${criteria}` })
      const expected = idsIn((await admin.get(`${type}?${criteria}&_count=100`)).body)
      t.same(idsIn((await ask('GET', `${type}?_count=100`)).body), expected, 'search')
      const history = await ask('GET', `${type}/_history?_count=100`)
      t.same([...new Set(idsIn(history.body))], expected, 'history')
      for (const resource of made) {
        const { id } = resource
        const isSeen = expected.includes(id)
        t.equal((await ask('GET', `${type}/${id}`)).status, isSeen ? 200 : 404, `read ${id}`)
        const old = await ask('GET', `${type}/${id}/_history/1`)
        t.equal(old.status, isSeen ? 200 : 404, `vread ${id}`)
        const put = await ask('PUT', `${type}/${id}`, resource)
        t.equal(put.status, isSeen ? 200 : 404, `update ${id}`)
        if (isSeen) continue
        const { id: _id, meta: _meta, ...content } = resource
        t.equal((await ask('POST', type, content)).status, 403, `create as ${id}`)
      }
    })
  }
}

const WAYS = ['birthdate=1950', 'family=before', 'general-practitioner:Practitioner.family=seen']
for (const criteria of WAYS) {
  t.test(`decides on each version of a resource: ${criteria}`, async (t) => {
    const ask = under({ resourceType: 'Patient', criteria: `Patient?${criteria}` })
    const [seen, unseen] = await Promise.all(
      ['Seen', 'Unseen'].map((family) =>
        admin.create({ resourceType: 'Practitioner', name: [{ family }] }),
      ),
    )
    const inside = {
      birthDate: '1950-01-01',
      name: [{ family: 'Before' }],
      generalPractitioner: [{ reference: `Practitioner/${seen?.id}` }],
    }
    const outside = {
      birthDate: '1951-01-01',
      name: [{ family: 'After' }],
      generalPractitioner: [{ reference: `Practitioner/${unseen?.id}` }],
    }
    const { id } = await admin.create(aPatient(outside))
    const change = (fields: Partial<Resource>) =>
      admin.put(`Patient/${id}`, { ...aPatient(fields), id })
    await change(inside)
    await change({ ...inside, gender: 'other' })

    const versions = async () => {
      const { status, body } = await ask('GET', `Patient/${id}/_history`)
      if (status !== 200) return status
      return body.entry?.map((entry: { response: { etag: string } }) => entry.response.etag)
    }
    const status = async (path: string) => (await ask('GET', path)).status
    t.same(await versions(), ['W/"3"', 'W/"2"'])
    t.equal(await status(`Patient/${id}/_history/1`), 404)
    t.equal(await status(`Patient/${id}/_history/2`), 200)

    await change(outside)
    t.equal(await status(`Patient/${id}/_history/2`), 404, 'the newest is out of sight')
    t.equal(await versions(), 404)

    await change(inside)
    await admin.del(`Patient/${id}`)
    t.equal(await status(`Patient/${id}`), 410)
    t.same(await versions(), ['W/"6"', 'W/"5"', 'W/"3"', 'W/"2"'])

    await change(outside)
    await admin.del(`Patient/${id}`)
    t.equal(await status(`Patient/${id}`), 404)
    t.equal(await versions(), 404)
  })
}

t.test('reads with one statement under any criteria', async (t) => {
  const id = patients[0]?.id
  for (const criteria of ['family=mul', 'birthdate=1950', `_id=${id}`, 'gender:not=other']) {
    const entries = [{ resourceType: 'Patient', criteria: `Patient?${criteria}` }]
    const { client } = await memberUnder(botica, { entries })
    const read = () => client.get(`Patient/${id}`)
    t.equal((await read()).status, 200, criteria)
    t.equal(await statementsAsked(services, client, read), 1, criteria)
  }
})

t.test('returns complete, ordered pages where a chain allows few rows', async (t) => {
  const days = ['03', '01', '04', '02', '05', '07', '06', undefined]
  const about = await admin.create(aPatient({ name: [{ family: 'Paged' }] }))
  const made = await Promise.all(
    days.map((day) =>
      admin.create(
        anObservation(`Patient/${about.id}`, {
          effectiveDateTime: day && `2024-01-${day}`,
          status: day === '04' ? 'amended' : 'final',
        }),
      ),
    ),
  )
  const ask = under({
    resourceType: 'Observation',
    criteria: 'Observation?status=final&subject:Patient.family=paged',
  })
  const seen = made.filter(({ status }) => status === 'final')
  const idOn = (day: string | undefined) => made[days.indexOf(day)]?.id
  const dated = ['01', '02', '03', '05', '06', '07'].map(idOn)
  for (const [sort, expected] of [
    ['date', [...dated, idOn(undefined)]],
    ['-date', [idOn(undefined), ...dated.toReversed()]],
    ['_id', seen.map(({ id }) => id).sort()],
  ] as const) {
    const found: string[] = []
    let path: string | undefined = `Observation?subject=Patient/${about.id}&_sort=${sort}&_count=2`
    while (path !== undefined && found.length <= made.length) {
      const { body } = await ask('GET', path)
      found.push(...body.entry.map((entry: { resource: Resource }) => entry.resource.id))
      const next = body.link.find((link: { relation: string }) => link.relation === 'next')
      path = next?.url.replace(/^.*\/fhir\/R4\//, '')
    }
    t.same(found, expected, sort)
  }
})
