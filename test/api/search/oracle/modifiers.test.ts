import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { checkQueries, loadStage } from '../../../fixtures/oracle/stage.ts'

const botica = await openBotica(t)
const all = await loadStage(botica)
const LOINC = 'http://loinc.org'
const UCUM = 'http://unitsofmeasure.org'

const COMPOSITES = `
Observation?code-value-quantity=8302-2$gt165
Observation?code-value-quantity=${LOINC}|29463-7$70
Observation?code-value-quantity=${LOINC}|29463-7$70|${UCUM}|kg
Observation?code-value-quantity=29463-7$70||stone
!Observation?code-value-quantity=8302-2$70||stone
Observation?code-value-quantity=8302-2$gt165,29463-7$lt70
Observation?component-code-value-quantity=8480-6$gt140
!Observation?component-code-value-quantity=8462-4$gt140
Observation?component-code-value-quantity=8462-4$90|${UCUM}|mm[Hg]
Observation?combo-code-value-quantity=8480-6$150,8302-2$ge170
Observation?code-value-concept=11367-0$8517006
Observation?code-value-concept=${LOINC}|11367-0$http://snomed.info/sct|8517006
Observation?component-code-value-concept=8462-4$high
!Observation?component-code-value-concept=8480-6$high
Observation?combo-code-value-concept=8462-4$urn:v|high
Observation?code-value-date=11778-8$2021
Observation?code-value-date=11778-8$ge2021-06
Observation?code-value-string=note$seen
Observation?code-value-string=note$SEEN BY
Group?characteristic-value=sex$F
Group?characteristic-value=urn:c|sex$urn:s|M
!Group?characteristic-value=old$F
Group?characteristic-value=old$true
DocumentReference?relationship=DocumentReference/d1$replaces
!DocumentReference?relationship=DocumentReference/d2$replaces
DocumentReference?relationship=DocumentReference/d2$signs,DocumentReference/d1$appends
MolecularSequence?chromosome-variant-coordinate=urn:chr|1$1000$1001
!MolecularSequence?chromosome-variant-coordinate=urn:chr|1$1000$2001
MolecularSequence?chromosome-variant-coordinate=1$ge1000$lt1003`

const MODIFIERS = `
Observation?code:text=body
Observation?code:text=weight body
Observation?code:text=history%20tobacco
!Observation?code:text=ody
Observation?code:text=body height,tobacco
Observation?category:text=vital
Observation?value-concept:text=ex
Condition?code:text=chronic
Condition?severity:text=sev
Patient?identifier:text=passport
Patient?identifier:text=medical rec
Immunization?vaccine-code:text=measles rubella
Immunization?vaccine-code:text=influenza
Patient?identifier:of-type=urn:type|MR|A\\,1
!Patient?identifier:of-type=urn:type|SS|A\\,1
Patient?identifier:of-type=http://terminology.hl7.org/CodeSystem/v2-0203|SS|999-96-8089
Patient?email:contains=marie
Patient?email:contains=EXAMPLE.org
Patient?phone:contains=30 1234
Patient?telecom:contains=555
Patient?name:text=don
Patient?name:not=mcdonald
Patient?family:not=mul,mc
Patient?address-city:not=köln
Patient?_profile:below=http://example.org/p
Patient?_profile:below=http://example.org/p/two
Patient?_profile:below=http://example.org/p/two|1
!Patient?_profile:below=http://example.org/p/t
Patient?_profile:above=http://example.org/p/one/more
Patient?_profile:contains=P/ONE
Patient?_source:contains=source
Procedure?instantiates-uri:below=http://example.org/a
Procedure?instantiates-uri:below=http://example.org/a/
!Procedure?instantiates-uri:below=http://example.org/a/b/c/d
Procedure?instantiates-uri:above=http://example.org/a/b/c/d
!Procedure?instantiates-uri:above=http://example.org/a/b
ValueSet?url:below=http://example.org/vs
ValueSet?url:above=http://example.org/vs/a/b
ValueSet?url:contains=vsx`

const UNITS = `
Observation?value-quantity=70|${UCUM}|kg
Observation?value-quantity=70000|${UCUM}|g
Observation?value-quantity=gt1.7|${UCUM}|m
Observation?value-quantity=ge165.6|${UCUM}|cm&code=8302-2
Observation?value-quantity=lt1|${UCUM}|m,gt90|${UCUM}|kg
!Observation?value-quantity=70|${UCUM}|s
!Observation?value-quantity=70|${UCUM}|no-unit
Encounter?length=90|${UCUM}|min
Encounter?length=1.5|${UCUM}|h
Encounter?length=5400|${UCUM}|s
Encounter?length=ne1.5|${UCUM}|h`

for (const [kind, list] of Object.entries({ COMPOSITES, MODIFIERS, UNITS })) {
  t.test(`finds the matches of the raw JSON by ${kind.toLowerCase()}`, async (t) => {
    await checkQueries(t, botica.admin, all, list)
  })
}

t.test('measures near by distance on the sphere', async (t) => {
  const places = { Berlin: [52.52, 13.405], Potsdam: [52.39, 13.06], Suva: [-18.14, 179.9] }
  for (const [name, [latitude, longitude]] of Object.entries(places)) {
    await botica.admin.create({
      resourceType: 'Location',
      name,
      position: { latitude, longitude },
    })
  }
  const CASES: [string, string[]][] = [
    ['52.52|13.4', ['Berlin', 'Potsdam', 'Suva']],
    ['52.52|13.4|10', ['Berlin']],
    ['52.52|13.4|10|km', ['Berlin']],
    ['52.52|13.4|40', ['Berlin', 'Potsdam']],
    ['52.52|13.4|40000|m', ['Berlin', 'Potsdam']],
    ['52.52|13.4|20|[mi_us]', ['Berlin', 'Potsdam']],
    ['-18.14|-179.9|50', ['Suva']],
    ['52.52|13.4|10,-18|180|50', ['Berlin', 'Suva']],
    ['0|0|10', []],
  ]
  for (const [near, expected] of CASES) {
    const { body } = await botica.admin.get<{ entry?: { resource: { name: string } }[] }>(
      `Location?name=berlin,potsdam,suva&near=${encodeURIComponent(near)}`,
    )
    const names = (body.entry ?? []).map(({ resource }) => resource.name)
    t.same(names.sort(), expected, near)
  }
})
