import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { compareKeys, expectedMatches, sortKeys } from '../../../fixtures/oracle/oracle.ts'
import { idsFound, loadStage } from '../../../fixtures/oracle/stage.ts'

const botica = await openBotica(t)
const { admin } = botica
const all = await loadStage(botica)

const SORTS = `
Patient?_sort=name
Patient?_sort=-name
Patient?_sort=family,given
Patient?_sort=-gender,birthdate
Patient?_sort=birthdate
Patient?_sort=-birthdate
Patient?_sort=death-date
Patient?_sort=-death-date
Patient?_sort=identifier
Patient?_sort=email
Patient?_sort=-phone,_id
Patient?_sort=language
Patient?_sort=general-practitioner
Patient?_sort=_profile
Patient?_sort=-_tag,-_lastUpdated
Patient?_sort=address-city
Practitioner?_sort=-name
Organization?_sort=name,-_lastUpdated
Organization?_sort=type,-name
Organization?_sort=-active
Encounter?_sort=date
Encounter?_sort=-date
Encounter?_sort=class,-date
Encounter?_sort=-length,date
Encounter?_sort=subject,date
Encounter?_sort=location-period,-status
Condition?_sort=code
Condition?_sort=-recorded-date,code
Condition?_sort=onset-age
Claim?_sort=-created,status
ExplanationOfBenefit?_sort=created
Observation?_sort=code,-date
Observation?_sort=-code,date
Observation?_sort=value-quantity
Observation?_sort=-value-quantity
Observation?_sort=component-value-quantity,-_id
Observation?_sort=combo-code
Observation?_sort=-combo-value-quantity
Observation?_sort=status,category,-date
Observation?_sort=value-string
Observation?_sort=-patient,date
Observation?_sort=encounter
Observation?_sort=-value-date
Observation?code=8302-2&_sort=-value-quantity
Observation?category=laboratory&_sort=code,date
Observation?status=amended&_sort=-date,code
Observation?value-quantity=gt70&_sort=value-quantity
Observation?code:text=body&_sort=-code,value-quantity
Immunization?_sort=reaction-date
Immunization?_sort=-reaction-date
Immunization?_sort=-lot-number,date
Immunization?_sort=-vaccine-code
DiagnosticReport?_sort=-issued
Procedure?_sort=-date,code
Procedure?_sort=instantiates-uri
MedicationRequest?_sort=date
MedicationRequest?_sort=-authoredon
RiskAssessment?_sort=probability
RiskAssessment?_sort=-probability,date
ChargeItem?_sort=-factor-override
ChargeItem?_sort=price-override
Invoice?_sort=-totalnet
MolecularSequence?_sort=-variant-start
Task?_sort=authored-on,status
Task?_sort=period
Task?_sort=-period,priority
ValueSet?_sort=title
ValueSet?_sort=-date
ValueSet?_sort=url
ValueSet?_sort=-version
QuestionnaireResponse?_sort=-questionnaire
Observation?_sort=-date,-_lastUpdated
Observation?_sort=date,value-quantity
Observation?status=amended&_sort=-_lastUpdated,_id
Observation?_sort=_lastUpdated,-_id
Encounter?date=ge2020&_sort=-date,status
Observation?_sort=_lastUpdated
Observation?_sort=-_lastUpdated
Observation?_sort=_id`
  .trim()
  .split('\n')

const parseSort = (query: string) => /_sort=([^&]+)/.exec(query)?.[1] ?? ''

/** The sort keys in expected order and in actual order. */
function orders(query: string, found: readonly string[]) {
  const sort = parseSort(query)
  const byId = new Map(all.map((stored) => [stored.id, stored]))
  const keys = (ids: readonly string[]) =>
    ids.flatMap((id) => {
      const stored = byId.get(id)
      return stored === undefined ? [] : [sortKeys(stored, sort)]
    })
  const expected = expectedMatches(all, query).map(({ id }) => id)
  return {
    expected,
    keys: keys(expected).sort((a, b) => compareKeys(a, b, sort)),
    found: keys(found),
  }
}

interface Page {
  readonly link: readonly { readonly relation: string; readonly url: string }[]
  readonly entry?: readonly { readonly resource: { readonly id: string } }[]
}

/** Walks to the last page by `next`, then to the first by `previous`. */
async function idsBackwards(query: string): Promise<string[]> {
  const findLink = ({ link }: Page, relation: string) =>
    link.find((one) => one.relation === relation)?.url
  let { body: page } = await admin.get<Page>(query)
  for (let url = findLink(page, 'next'); url !== undefined; url = findLink(page, 'next')) {
    page = (await admin.get<Page>(url)).body
  }
  let ids: string[] = []
  for (;;) {
    ids = [...(page.entry ?? []).map(({ resource }) => resource.id), ...ids]
    const url = findLink(page, 'previous')
    if (url === undefined) return ids
    page = (await admin.get<Page>(url)).body
  }
}

for (const query of SORTS) {
  t.test(`orders ${query} as a whole and in pages`, async (t) => {
    const found = await idsFound(admin, `${query}&_count=1000`)
    const { expected, keys, found: ownKeys } = orders(query, found)
    t.same([...found].sort(), [...expected].sort(), 'as a set')
    t.same(ownKeys, keys, 'in order')
    const size = Math.max(1, Math.ceil(expected.length / 3))
    t.same(await idsFound(admin, `${query}&_count=${size}`), found, 'by cursor')
    t.same(await idsFound(admin, `${query}&_count=${size}&_offset=0`), found, 'by offset')
    t.same(await idsBackwards(`${query}&_count=${size}`), found, 'and back again')
  })
}

t.test('has no next page at the end', async (t) => {
  const count = all.filter(({ type }) => type === 'Encounter').length
  for (const sort of ['_id', 'date', '-class,date']) {
    const { body } = await admin.get<{ link: { relation: string }[] }>(
      `Encounter?_sort=${sort}&_count=${count}`,
    )
    t.notOk(body.link.some(({ relation }) => relation === 'next'))
  }
})

const WALKS = ['', 'code,-date', '-value-quantity', 'date', '_id', '-_lastUpdated']

for (const sort of WALKS) {
  t.test(`neither repeats nor skips rows by "${sort}" while another client writes`, async (t) => {
    const steady = all.filter(({ type }) => type === 'Observation').map(({ id }) => id)
    let isOver = false
    const mark = randomUUID()
    const writer = (async () => {
      const made: string[] = []
      for (let i = 0; !isOver; i++) {
        const { id } = await admin.create({
          resourceType: 'Observation',
          status: 'final',
          code: { coding: [{ system: mark, code: `${i % 10}` }] },
          effectiveDateTime: `20${10 + (i % 10)}-01-01`,
          valueQuantity: { value: i % 200 },
        })
        made.push(id)
        if (i % 3 === 2) await admin.del(`Observation/${made.shift()}`)
      }
      for (const id of made) await admin.del(`Observation/${id}`)
    })()
    const walked = await idsFound(admin, `Observation?_sort=${sort}&_count=9`)
    isOver = true
    await writer
    t.equal(new Set(walked).size, walked.length, 'none twice')
    const seen = new Set(walked)
    t.same(
      steady.filter((id) => !seen.has(id)),
      [],
      'none missing',
    )
  })
}
