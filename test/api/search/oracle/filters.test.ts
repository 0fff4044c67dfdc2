/** Every operator of `_filter` against the raw JSON. https://hl7.org/fhir/R4/search_filter.html */
import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { findParameter } from '../../../fixtures/oracle/elements.ts'
import { expectedMatches, extractValues, type Stored } from '../../../fixtures/oracle/oracle.ts'
import { idsFound, loadStage } from '../../../fixtures/oracle/stage.ts'
import { dateRange, fold, strings, toDateRange } from '../../../fixtures/oracle/values.ts'
import { joinedMatches } from './joins.ts'

const botica = await openBotica(t)
const all = await loadStage(botica)
const patients = all.filter(({ type }) => type === 'Patient').map(({ id }) => id)
const GENDERS = 'http://hl7.org/fhir/administrative-gender'
const GENDER_SET = 'http://hl7.org/fhir/ValueSet/administrative-gender'

type Found = readonly Stored[]
const by = (query: string): Found => joinedMatches(all, query)
const of = (type: string): Found => all.filter((one) => one.type === type)
const without = (some: Found, others: Found) => some.filter((one) => !others.includes(one))
const either = (...lists: Found[]): Found => [...new Set(lists.flat())]
const both = (some: Found, others: Found) => some.filter((one) => others.includes(one))

/** True when any value of the parameter matches. */
function having(type: string, code: string, isAsAsked: (raw: unknown) => boolean): Found {
  const parameter = findParameter(type, code)
  if (parameter === undefined || parameter.kind === 'composite') throw new Error(code)
  return of(type).filter(({ json }) => extractValues(parameter, json).some(isAsAsked))
}
const ending = (type: string, code: string, end: string) =>
  having(type, code, (raw) => strings(raw).some((part) => fold(part).endsWith(end)))
const overlapping = (type: string, code: string, text: string) => {
  const asked = dateRange(text)
  return having(type, code, (raw) => {
    const own = toDateRange(raw)
    return own.low < asked.high && own.high > asked.low
  })
}

const male = by('Patient?gender=male')
const CASES: readonly (readonly [type: string, filter: string, expected: Found])[] = [
  ['Patient', 'family eq McDonald', by('Patient?family:exact=McDonald')],
  ['Patient', 'family eq mcdonald', []],
  ['Patient', 'family ne McDonald', without(of('Patient'), by('Patient?family:exact=McDonald'))],
  ['Patient', 'name co "cdon"', by('Patient?name:contains=cdon')],
  ['Patient', 'name sw mül', by('Patient?name=mül')],
  ['Patient', 'family ew lüdenscheidt', ending('Patient', 'family', 'ludenscheidt')],
  ['Patient', "name ew '100%'", ending('Patient', 'name', '100%')],
  ['Patient', 'address-city pr false', by('Patient?address-city:missing=true')],
  ['Patient', 'gender eq male', male],
  ['Patient', 'gender ne male', by('Patient?gender:not=male')],
  ['Patient', 'gender pr true', by('Patient?gender:missing=false')],
  ['Patient', `gender in ${GENDER_SET}`, by('Patient?gender:missing=false')],
  ['Patient', `gender ni ${GENDER_SET}`, by('Patient?gender:missing=true')],
  ['Patient', `gender ss ${GENDERS}|male`, male],
  ['Patient', `gender sb ${GENDERS}|male`, male],
  ['Patient', 'email co marie', by('Patient?email:contains=marie')],
  ['Patient', 'identifier eq "urn:i|A,1"', by('Patient?identifier=urn:i|A\\,1')],
  ['Patient', 'birthdate eq 1970', by('Patient?birthdate=1970')],
  ['Patient', 'birthdate ne 1970', by('Patient?birthdate=ne1970')],
  ['Patient', 'birthdate gt 1970', by('Patient?birthdate=gt1970')],
  ['Patient', 'birthdate lt 1970-05', by('Patient?birthdate=lt1970-05')],
  ['Patient', 'birthdate ge 1970-05-17', by('Patient?birthdate=ge1970-05-17')],
  ['Patient', 'birthdate le 1970', by('Patient?birthdate=le1970')],
  ['Patient', 'birthdate ap 1970', by('Patient?birthdate=ap1970')],
  ['Encounter', 'date sa 2012', by('Encounter?date=sa2012')],
  ['Encounter', 'date eb 2012', by('Encounter?date=eb2012')],
  ['Encounter', 'date po 2012', overlapping('Encounter', 'date', '2012')],
  ['Observation', 'date po 2015-01', overlapping('Observation', 'date', '2015-01')],
  ['Task', 'period po 2024-01-10', overlapping('Task', 'period', '2024-01-10')],
  ...['eq', 'ne', 'gt', 'lt', 'ge', 'le', 'ap', 'sa', 'eb'].flatMap(
    (operator) =>
      [
        [
          'RiskAssessment',
          `probability ${operator} 0.25`,
          by(`RiskAssessment?probability=${operator}0.25`),
        ],
        [
          'Observation',
          `value-quantity ${operator} 70`,
          by(`Observation?value-quantity=${operator}70`),
        ],
      ] as const,
  ),
  ['Observation', 'value-quantity gt "70||kg"', by('Observation?value-quantity=gt70||kg')],
  [
    'Observation',
    `subject re Patient/${patients[0]}`,
    by(`Observation?subject=Patient/${patients[0]}`),
  ],
  ['Observation', `subject eq ${patients[0]}`, by(`Observation?subject=${patients[0]}`)],
  ['Observation', `subject ne ${patients[0]}`, by(`Observation?subject:not=${patients[0]}`)],
  [
    'Patient',
    'general-practitioner identifier urn:npi|77',
    by('Patient?general-practitioner:identifier=urn:npi|77'),
  ],
  [
    'Procedure',
    'instantiates-uri eq http://example.org/a/b/c',
    by('Procedure?instantiates-uri=http://example.org/a/b/c'),
  ],
  [
    'Procedure',
    'instantiates-uri sw http://example.org/a',
    by('Procedure?instantiates-uri:below=http://example.org/a'),
  ],
  ['Procedure', 'instantiates-uri co EXAMPLE', by('Procedure?instantiates-uri:contains=EXAMPLE')],
  ['Procedure', 'instantiates-uri ne urn:x', of('Procedure')],
  ['Observation', 'patient.gender eq male', by('Observation?patient.gender=male')],
  ['Observation', 'patient.birthdate lt 1980', by('Observation?patient.birthdate=lt1980')],
  [
    'Observation',
    'subject:Patient.address-city pr true',
    by('Observation?subject:Patient.address-city:missing=false'),
  ],
  [
    'Patient',
    '_has:Observation:patient:code eq 8302-2',
    by('Patient?_has:Observation:patient:code=8302-2'),
  ],
  [
    'Patient',
    '_has:Observation:patient:status ne final',
    by('Patient?_has:Observation:patient:status:not=final'),
  ],
  [
    'Patient',
    'not (_has:Observation:patient:code eq 8302-2)',
    without(of('Patient'), by('Patient?_has:Observation:patient:code=8302-2')),
  ],
  ...['ne', 'gt', 'le'].map(
    (operator) =>
      [
        'Patient',
        `_has:Observation:patient:value-quantity ${operator} 70`,
        by(`Patient?_has:Observation:patient:value-quantity=${operator}70`),
      ] as const,
  ),
  [
    'Patient',
    '_has:Observation:patient:encounter.class eq AMB',
    by('Patient?_has:Observation:patient:encounter.class=AMB'),
  ],
  [
    'Observation',
    'patient._has:Encounter:patient:date gt 2012',
    by('Observation?patient._has:Encounter:patient:date=gt2012'),
  ],
  ['Patient', `_id eq ${patients[1]}`, by(`Patient?_id=${patients[1]}`)],
  ['Patient', `_id ne ${patients[1]}`, by(`Patient?_id:not=${patients[1]}`)],
  ['Patient', '_tag eq urn:t|a or _tag eq b', by('Patient?_tag=urn:t|a,b')],
  ['Patient', 'not (gender eq male)', without(of('Patient'), male)],
  ['Patient', 'not (not (gender eq male))', male],
  ['Patient', 'gender eq male and birthdate lt 1985', both(male, by('Patient?birthdate=lt1985'))],
  // Left to right: `and` and `or` have no precedence.
  [
    'Patient',
    'gender eq male or gender eq female and birthdate lt 1985',
    both(either(male, by('Patient?gender=female')), by('Patient?birthdate=lt1985')),
  ],
  [
    'Patient',
    'gender eq male or (gender eq female and birthdate lt 1985)',
    either(male, both(by('Patient?gender=female'), by('Patient?birthdate=lt1985'))),
  ],
  [
    'Patient',
    'not (gender eq male or name sw mul) and (birthdate pr true)',
    both(
      without(without(of('Patient'), male), by('Patient?name=mul')),
      by('Patient?birthdate:missing=false'),
    ),
  ],
]

for (const [type, filter, expected] of CASES) {
  t.test(`${type}?_filter=${filter}`, async (t) => {
    const found = await idsFound(
      botica.admin,
      `${type}?_filter=${encodeURIComponent(filter)}&_count=200`,
    )
    t.same(found.sort(), expected.map(({ id }) => id).sort(), `${expected.length}`)
    t.equal(expected.length > 0, filter !== 'family eq mcdonald', 'it asks something')
  })
}

/** Composites with dates and chains of `_has`, with the matches by the raw JSON. */
const MORE = `
Observation?code-value-date=11778-8$2021-05
Observation?code-value-date=11778-8$ne2021-05
Observation?code-value-date=11778-8$gt2021-05
Observation?code-value-date=11778-8$le2021-06-07
Observation?code-value-date=11778-8$sa2021-05
Observation?code-value-date=11778-8$eb2021-06
Observation?code-value-date=11778-8$ap2021-05,11778-8$2021-06-07
Patient?_has:Observation:patient:_has:DiagnosticReport:result:status=final
Patient?_has:Encounter:patient:_has:Observation:encounter:_has:DiagnosticReport:result:status=final
Patient?_has:Observation:patient:encounter.class=AMB
Patient?_has:Observation:patient:code:not=8302-2
Patient?_has:Observation:patient:value-quantity:missing=true
Organization?_has:Encounter:service-provider:patient.gender=female
Encounter?_has:Observation:encounter:patient.birthdate=lt1980`

t.test('finds the matches of the raw JSON by composites with dates and nested _has', async (t) => {
  for (const query of MORE.trim().split('\n')) {
    const asks = query.includes('_has') ? joinedMatches : expectedMatches
    const expected = asks(all, query).map(({ id }) => id)
    t.ok(expected.length > 0 || query.includes('eb'), `${query} asks something`)
    t.same((await idsFound(botica.admin, `${query}&_count=200`)).sort(), expected.sort(), query)
  }
})
