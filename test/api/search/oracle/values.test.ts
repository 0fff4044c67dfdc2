import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { checkQueries, loadStage } from '../../../fixtures/oracle/stage.ts'

const botica = await openBotica(t)
const all = await loadStage(botica)
const patients = all.filter(({ type }) => type === 'Patient').map(({ id }) => id)
const observed = all.find(({ type, json }) => type === 'Observation' && json.encounter)
const encounter = observed?.json.encounter.reference.split('/')[1]
const LOINC = 'http://loinc.org'
const UCUM = 'http://unitsofmeasure.org'

/** `!` marks a search without matches; all others must have some. */
const STRINGS = `
Patient?name=mul
Patient?name=MÜLLER
Patient?name=anne marie
Patient?name=marie anne
Patient?name=marie
Patient?name=ludenscheidt
Patient?family=müller-l
Patient?family=lüdenscheidt
Patient?given=eva
Patient?given=old
Patient?given=Old_
Patient?name=old%20mcd
!Patient?name=%25
!Patient?name=_
Patient?name:exact=Éva
!Patient?name:exact=Eva
Patient?name:exact=Old%20%20McDonald%20100%25
Patient?family:exact=McDonald
!Patient?family:exact=Mcdonald
Patient?name:contains=don
Patient?name:contains=100%25
Patient?given:contains=_o
Patient?name:contains=nn
Patient?family=mc,mül
Patient?family=mc&given=old
Patient?name:missing=true
Patient?given:missing=false
Patient?address=koln
Patient?address=stra
Patient?address:contains=haus
Patient?address-city=KÖLN
Patient?address-city:exact=Köln
Patient?address-state=MA
Patient?address-country=US,DE
Patient?address-postalcode=0
Patient?address-city:missing=true
Practitioner?name=dr
Practitioner?family=zett
Practitioner?address-city=berlin
Organization?name=alpha
Organization?name:exact=alpha%20beta
Organization?name:exact=ALPHA
Organization?name=omega
Organization?name:contains=hospital
Organization?address-state=ma
Condition?onset-info=in%20early%20childhood
Condition?onset-info:contains=child
Immunization?lot-number=ab-12
Observation?value-string=seen
Observation?value-string=ex
ValueSet?title=emile
ValueSet?title=emile\\, the
ValueSet?name:exact=Vs1
ExplanationOfBenefit?disposition:missing=true`

const TOKENS = `
Patient?gender=female
Patient?gender=male,other
Patient?gender:not=male
Patient?gender:not=male,other
Patient?gender:missing=true
Patient?active=true
Patient?active=false
Patient?active:not=true
Patient?identifier=no-system
Patient?identifier=|no-system
!Patient?identifier=urn:i|no-system
Patient?identifier=urn:i|A\\,1
!Patient?identifier=urn:i|A
Patient?identifier=urn:i|pipe\\|1
Patient?identifier=urn:i|
Patient?identifier=http://hl7.org/fhir/sid/us-ssn|
Patient?identifier:missing=true
Patient?identifier:not=no-system
Patient?email=ANNE.marie@example.ORG
Patient?telecom=email|Anne.Marie@Example.org
Patient?telecom=phone|
Patient?phone=%2B49 30 1234
Patient?phone:missing=true
Patient?language=de
Patient?language=urn:ietf:bcp:47|de
Patient?address-use=home
Patient?_tag=urn:t|a
Patient?_tag=|bare
Patient?_tag=bare,b
Patient?_tag=https://smarthealthit.org/tags|
Patient?_tag:not=https://smarthealthit.org/tags|synthea-5-2019
Patient?_tag:missing=true
Patient?_security=R
Patient?_security:missing=true
Organization?type=Free text only
Organization?type=http://terminology.hl7.org/CodeSystem/organization-type|prov
Organization?active:missing=true
Encounter?status=finished
Encounter?status=planned,cancelled
Encounter?class=AMB
Encounter?class=|IMP
!Encounter?class=http://terminology.hl7.org/CodeSystem/v3-ActCode|IMP
Encounter?class:not=AMB
Encounter?class=http://terminology.hl7.org/CodeSystem/v3-ActCode|
Encounter?type=http://snomed.info/sct|185345009
Encounter?type=http://snomed.info/sct|&status=finished
Encounter?reason-code:missing=true&class=AMB
Condition?code=Headache\\, chronic
Condition?code:missing=true
Condition?clinical-status=active&verification-status=confirmed
Condition?severity=24484000
Observation?code=${LOINC}|29463-7
Observation?code=29463-7
Observation?code=|29463-7,urn:lab|29463-7
Observation?code=29463-7,8302-2
Observation?code=${LOINC}|
Observation?code:not=${LOINC}|29463-7
Observation?code:missing=false
Observation?category=vital-signs
Observation?category=laboratory,social-history
Observation?category:missing=true
Observation?status=final&category=vital-signs
Observation?component-code=8480-6
Observation?combo-code=8480-6,8302-2
Observation?combo-code:not=8480-6
Observation?value-concept=http://snomed.info/sct|8517006
Observation?value-concept:missing=false
Observation?combo-value-concept=urn:v|high
Observation?component-value-concept=high
Observation?data-absent-reason=unknown
Observation?method:missing=false
Immunization?vaccine-code=140,03
Immunization?status:not=completed
Claim?use=claim
Claim?priority=normal
Claim?status=active,cancelled
MedicationRequest?intent=plan,order
MedicationRequest?priority=urgent
MedicationRequest?code=http://www.nlm.nih.gov/research/umls/rxnorm|
Task?group-identifier=urn:g|1
Task?group-identifier=urn:g|
Task?priority:missing=true
Group?type=person
Group?actual=true&code:missing=true
DocumentReference?relation=signs
DocumentReference?contenttype=text/plain
CodeSystem?code:missing=false
ValueSet?status=draft&version=0.0`

const REFERENCES = `
Observation?subject=Patient/${patients[0]}
Observation?subject=${patients[0]},${patients[1]}
Observation?subject:Patient=${patients[0]}
!Observation?subject:Group=${patients[0]}
Observation?patient=${patients[1]}
Observation?patient=Patient/${patients[2]}&category=laboratory
Observation?subject:not=Patient/${patients[0]}
!Observation?subject:missing=true
Observation?encounter=${encounter}
Observation?encounter=Encounter/${encounter}
Observation?encounter:missing=true
Encounter?subject=Group/x
Encounter?subject=x
Encounter?patient:missing=true
Encounter?practitioner:missing=true
Encounter?service-provider:missing=true
Encounter?participant:missing=false&status=finished
Patient?general-practitioner:identifier=urn:npi|77
Patient?general-practitioner=https://other.example/fhir/Practitioner/9
Patient?general-practitioner:missing=true
Patient?link=${patients[0]}
Procedure?reason-reference=Condition/c1
Procedure?reason-reference=c1
Procedure?subject:identifier=L1
Procedure?instantiates-canonical=http://example.org/plan
Procedure?instantiates-canonical=http://example.org/plan|2
!Procedure?instantiates-canonical=http://example.org/plan|1
MedicationRequest?medication=Medication/m1
MedicationRequest?requester:missing=true
QuestionnaireResponse?questionnaire=http://example.org/q
QuestionnaireResponse?questionnaire=http://example.org/q|2
DiagnosticReport?result:missing=true
Claim?patient=${patients[0]}
ExplanationOfBenefit?claim:missing=false
Task?owner=${patients[1]}
Task?patient:missing=true
Group?member=${patients[0]}
DocumentReference?relatesto=DocumentReference/d1
DocumentReference?relatesto=d1,d2&relation=replaces`

const OTHERS = `
Patient?_id=${patients[0]},${patients[1]},nobody
Patient?_id:not=${patients[0]}
Patient?_id=Patient/${patients[0]}
Patient?_lastUpdated=gt2020
!Patient?_lastUpdated=lt2020
Patient?_profile=http://example.org/p/one
Patient?_profile=http://example.org/p/two
Patient?_profile=http://example.org/p/two|1.3
Patient?_profile:missing=true
Patient?_source=urn:source:1
Patient?_source:missing=true
Procedure?instantiates-uri=http://example.org/a/b/c
ValueSet?url=http://example.org/vs
ValueSet?url=http://example.org/vs,http://example.org/vsx
ValueSet?reference=http://example.org/vs/system
DocumentReference?location=http://x.example/1
RiskAssessment?probability=0.3
RiskAssessment?probability=0.25
RiskAssessment?probability=0.250
RiskAssessment?probability=1e2
RiskAssessment?probability=1e-7
RiskAssessment?probability=gt0.25
RiskAssessment?probability=ge0.25
RiskAssessment?probability=lt0.1
RiskAssessment?probability=le0.1
RiskAssessment?probability=ne0.9
RiskAssessment?probability=ap0.26
RiskAssessment?probability=sa0.254
RiskAssessment?probability=eb0.1
RiskAssessment?probability=gt0.02&probability=lt0.05
RiskAssessment?probability:missing=true
ChargeItem?factor-override=0.8
ChargeItem?factor-override=1
ChargeItem?price-override=40
ChargeItem?price-override=40.01
ChargeItem?price-override=gt40|urn:iso:std:iso:4217|USD
Invoice?totalnet=20.00
Invoice?totalnet=20||EUR
!Invoice?totalnet=20|urn:iso:std:iso:4217|USD
MolecularSequence?variant-start=1000
MolecularSequence?variant-start=gt1000&variant-end=lt1010
Observation?value-quantity=70
Observation?value-quantity=70||stone
Observation?value-quantity=lt70|${UCUM}|kg
Observation?value-quantity=gt100||cm,gt50||kg
Observation?value-quantity=ge165.6&code=8302-2
Observation?value-quantity=ap70
Observation?value-quantity=ne70
Observation?value-quantity:missing=true
Observation?component-value-quantity=gt140|${UCUM}|mm[Hg]
Observation?combo-value-quantity=gt140
Condition?onset-age=40|${UCUM}|a
Condition?onset-age=32
Condition?onset-age=gt34||a
Encounter?length=lt2||h`

for (const [kind, list] of Object.entries({ STRINGS, TOKENS, REFERENCES, OTHERS })) {
  t.test(`finds the matches of the raw JSON by ${kind.toLowerCase()}`, async (t) => {
    await checkQueries(t, botica.admin, all, list)
  })
}

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
