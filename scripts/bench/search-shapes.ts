/** The queries of the search bench: each shape is asked for many values of the loaded data. */
import type { Loaded } from './search-load.ts'

export interface Shape {
  readonly name: string
  /** Paths below the FHIR base. */
  readonly queries: readonly string[]
}

/** Raw JSON of the samples. */
// biome-ignore lint/suspicious/noExplicitAny: only as deep as Synthea's resources go
type Raw = any

const LOINC = 'http://loinc.org'
const VALUES = 200

export function shapesOf({ samples }: Loaded): Shape[] {
  const of = (type: string, query: (raw: Raw) => string): readonly string[] => {
    const all = samples.get(type) ?? []
    const step = Math.max(1, Math.floor(all.length / VALUES))
    const picked = all.filter((_, i) => i % step === 0).slice(0, VALUES)
    return [...new Set(picked.map((raw) => query(raw)))]
  }
  const shape = (name: string, type: string, query: (raw: Raw) => string): Shape => ({
    name,
    queries: of(type, query),
  })
  const fixed = (name: string, ...queries: string[]): Shape => ({ name, queries })
  const patient = (query: (id: string, raw: Raw) => string) => (raw: Raw) => query(raw.id, raw)
  const token = (system: string, code: string) => encodeURIComponent(`${system}|${code}`)
  const day = (raw: Raw) => String(raw.effectiveDateTime).slice(0, 10)
  const monthOf = (text: string) => text.slice(0, 7)

  return [
    shape('Patient name', 'Patient', ({ name }) => `Patient?name=${name[0].family}`),
    shape(
      'Patient family and given',
      'Patient',
      ({ name }) => `Patient?family=${name[0].family.slice(0, 4)}&given=${name[0].given[1]}`,
    ),
    shape(
      'Patient address-city',
      'Patient',
      ({ address }) => `Patient?address-city=${encodeURIComponent(address[0].city)}`,
    ),
    shape('Patient birthdate', 'Patient', ({ birthDate }) => `Patient?birthdate=${birthDate}`),
    shape(
      'Patient birthdate range',
      'Patient',
      ({ birthDate: date }) => `Patient?birthdate=ge${monthOf(date)}&birthdate=le${monthOf(date)}`,
    ),
    shape(
      'Patient identifier',
      'Patient',
      ({ identifier: [{ system, value }] }) => `Patient?identifier=${token(system, value)}`,
    ),
    shape(
      'Organization name',
      'Organization',
      ({ name }) => `Organization?name=${encodeURIComponent(name)}`,
    ),
    shape('Observation date', 'Observation', (raw) => `Observation?date=${day(raw)}`),
    fixed('Observation category', 'Observation?category=laboratory'),
    fixed('Observation code', `Observation?code=${token(LOINC, '8302-2')}`),
    fixed('Observation value-quantity', 'Observation?value-quantity=gt190'),
    fixed(
      'Observation value-quantity, unit',
      `Observation?value-quantity=gt1.9${encodeURIComponent('|http://unitsofmeasure.org|m')}`,
    ),
    fixed('Observation code-value-quantity', 'Observation?code-value-quantity=8302-2$gt170'),
    fixed(
      'Observation combo-code-value-quantity',
      'Observation?combo-code-value-quantity=8480-6$gt130',
    ),
    fixed('Encounter status', 'Encounter?status=finished'),
    fixed('Encounter class', 'Encounter?class=AMB'),
    shape(
      'Encounter date',
      'Encounter',
      ({ period }) => `Encounter?date=${period.start.slice(0, 10)}`,
    ),
    shape(
      'MedicationRequest subject',
      'MedicationRequest',
      ({ subject }) => `MedicationRequest?subject=${subject.reference}`,
    ),
    shape(
      'MedicationRequest encounter',
      'MedicationRequest',
      ({ encounter }) => `MedicationRequest?encounter=${encounter.reference}`,
    ),
    shape(
      'MedicationRequest requester',
      'MedicationRequest',
      ({ requester }) => `MedicationRequest?requester=${requester.reference}`,
    ),
    shape(
      'Observation patient, category, newest 50',
      'Patient',
      patient((id) => `Observation?patient=${id}&category=laboratory&_sort=-date&_count=50`),
    ),
    fixed('Observation category, newest', 'Observation?category=vital-signs&_sort=-date'),
    shape(
      'Observation patient, by code and date',
      'Patient',
      patient((id) => `Observation?patient=${id}&_sort=code,-date`),
    ),
    fixed('Patient by name', 'Patient?_sort=name', 'Patient?gender=female&_sort=name'),
    shape(
      'chain patient.name',
      'Patient',
      ({ name }) => `Encounter?patient.name=${name[0].family}&status=finished`,
    ),
    shape(
      '_has Observation code, by name',
      'Patient',
      ({ name }) => `Patient?_has:Observation:patient:code=8302-2&name=${name[0].family}`,
    ),
    fixed('_has Observation code', 'Patient?_has:Observation:patient:code=8302-2'),
    shape(
      '_include patient and practitioner',
      'Patient',
      patient(
        (id) =>
          `Encounter?patient=${id}&_include=Encounter:patient&_include=Encounter:practitioner`,
      ),
    ),
    shape(
      '_revinclude Observation',
      'Patient',
      patient((id) => `Patient?_id=${id}&_revinclude=Observation:patient`),
    ),
    fixed('accurate total, Observation code', 'Observation?code=8302-2&_total=accurate'),
    fixed('accurate total, Patient gender', 'Patient?gender=female&_total=accurate'),
    fixed('code:text', 'Condition?code:text=sinusitis'),
  ]
}
