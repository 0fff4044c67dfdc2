/** Policy criteria on quantities: all access paths agree for every unit. */
import t from 'tap'
import { openBotica, until } from '../../../fixtures/botica.ts'
import { idsIn, memberUnder } from '../../../fixtures/policy/policy.ts'
import { anObservation, aPatient } from '../../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin, services } = botica
const UCUM = 'http://unitsofmeasure.org'
const SEEN_MS = 60_000

const { id: patient } = await admin.create(aPatient())
const weighing = (value: number, unit: string, system = UCUM) =>
  anObservation(`Patient/${patient}`, {
    valueQuantity: { value, unit, ...(system === '' ? {} : { system, code: unit }) },
  })
const made = await Promise.all(
  [
    weighing(90, 'kg'),
    weighing(90_000, 'g'),
    weighing(10, 'kg'),
    weighing(10_000, 'g'),
    weighing(200, '[lb_av]'),
    weighing(200, 'cm'),
    weighing(90, 'kg', ''),
    weighing(90, 'kg', 'urn:other'),
  ].map((observation) => admin.create(observation)),
)

for (const value of ['gt80', 'le80', '90', 'ne90', 'ap89', 'sa11']) {
  const criteria = `Observation?value-quantity=${value}|${UCUM}|kg`
  t.test(criteria, async (t) => {
    const { client } = await memberUnder(botica, {
      entries: [{ resourceType: 'Observation', criteria }],
    })
    const expected = idsIn((await admin.get(criteria)).body)
    t.ok(expected.length > 1)
    t.same(idsIn((await client.get('Observation')).body), expected, 'search')
    const history = idsIn((await client.get('Observation/_history?_count=100')).body)
    t.same(
      history.filter((id) => made.some((one) => one.id === id)),
      expected,
      'history',
    )
    for (const observation of made) {
      const { id, meta: _meta, ...content } = observation
      const isSeen = expected.includes(id)
      t.equal((await client.get(`Observation/${id}`)).status, isSeen ? 200 : 404, 'read')
      const put = await client.put(`Observation/${id}`, observation)
      t.equal(put.status, isSeen ? 200 : 404, 'update')
      const posted = await client.post<{ id: string }>('Observation', content)
      t.equal(posted.status, isSeen ? 201 : 403, 'create')
      if (isSeen) await admin.del(`Observation/${posted.body.id}`)
    }
  })
}

t.test('converts to a new unit soon after its first use', async (t) => {
  const criteria = `Observation?value-quantity=gt80|${UCUM}|kg`
  const { client } = await memberUnder(botica, {
    entries: [{ resourceType: 'Observation', criteria }],
  })
  const posted = await client.post<{ id: string }>('Observation', weighing(95_000_000, 'mg'))
  t.equal(posted.status, 201)
  t.equal((await client.get(`Observation/${posted.body.id}`)).status, 200)
  const isFound = async () =>
    idsIn((await client.get('Observation?_count=100')).body).includes(posted.body.id)
  await until(isFound, SEEN_MS)
  services.principals.forget()
  t.ok(await isFound())
})
