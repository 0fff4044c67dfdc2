/**
 * The queries of the search bench. A shape is asked for many values of the loaded data: `{path}` stands for what a
 * sample of the first type named holds there, encoded; `{path:4}` for its first four characters.
 */
import type { Samples } from './samples.ts'

export interface Shape {
  readonly name: string
  /** Paths below the FHIR base. */
  readonly queries: readonly string[]
}

const VALUES = 200
const METRE = encodeURIComponent('|http://unitsofmeasure.org|m')
const HEIGHT = encodeURIComponent('http://loinc.org|8302-2')

/** Name, type of the samples, query; without a type the query is asked as it is. */
const SHAPES: readonly (readonly [name: string, type: string, query: string])[] = [
  ['Patient name', 'Patient', 'Patient?name={name.0.family}'],
  [
    'Patient family and given',
    'Patient',
    'Patient?family={name.0.family:4}&given={name.0.given.1}',
  ],
  ['Patient address-city', 'Patient', 'Patient?address-city={address.0.city}'],
  ['Patient birthdate', 'Patient', 'Patient?birthdate={birthDate}'],
  [
    'Patient birthdate range',
    'Patient',
    'Patient?birthdate=ge{birthDate:7}&birthdate=le{birthDate:7}',
  ],
  [
    'Patient identifier',
    'Patient',
    'Patient?identifier={identifier.0.system}%7C{identifier.0.value}',
  ],
  ['Organization name', 'Organization', 'Organization?name={name}'],
  ['Observation date', 'Observation', 'Observation?date={effectiveDateTime:10}'],
  ['Observation category', '', 'Observation?category=laboratory'],
  ['Observation code', '', `Observation?code=${HEIGHT}`],
  ['Observation value-quantity', '', 'Observation?value-quantity=gt190'],
  ['Observation value-quantity, unit', '', `Observation?value-quantity=gt1.9${METRE}`],
  ['Observation code-value-quantity', '', 'Observation?code-value-quantity=8302-2$gt170'],
  [
    'Observation combo-code-value-quantity',
    '',
    'Observation?combo-code-value-quantity=8480-6$gt130',
  ],
  ['Encounter status', '', 'Encounter?status=finished'],
  ['Encounter class', '', 'Encounter?class=AMB'],
  ['Encounter date', 'Encounter', 'Encounter?date={period.start:10}'],
  [
    'MedicationRequest subject',
    'MedicationRequest',
    'MedicationRequest?subject={subject.reference}',
  ],
  [
    'MedicationRequest encounter',
    'MedicationRequest',
    'MedicationRequest?encounter={encounter.reference}',
  ],
  [
    'MedicationRequest requester',
    'MedicationRequest',
    'MedicationRequest?requester={requester.reference}',
  ],
  [
    'Observation patient, category, newest 50',
    'Patient',
    'Observation?patient={id}&category=laboratory&_sort=-date&_count=50',
  ],
  ['Observation category, newest', '', 'Observation?category=vital-signs&_sort=-date'],
  ['Observation patient, by code and date', 'Patient', 'Observation?patient={id}&_sort=code,-date'],
  ['Patient by name', '', 'Patient?_sort=name'],
  ['chain patient.name', 'Patient', 'Encounter?patient.name={name.0.family}&status=finished'],
  [
    '_has Observation code, by name',
    'Patient',
    'Patient?_has:Observation:patient:code=8302-2&name={name.0.family}',
  ],
  ['_has Observation code', '', 'Patient?_has:Observation:patient:code=8302-2'],
  [
    '_include patient and practitioner',
    'Patient',
    'Encounter?patient={id}&_include=Encounter:patient&_include=Encounter:practitioner',
  ],
  ['_revinclude Observation', 'Patient', 'Patient?_id={id}&_revinclude=Observation:patient'],
  ['accurate total, Observation code', '', 'Observation?code=8302-2&_total=accurate'],
  ['accurate total, Patient gender', '', 'Patient?gender=female&_total=accurate'],
  ['code:text', '', 'Condition?code:text=sinusitis'],
]

export function shapesOf(samples: Samples): readonly Shape[] {
  return SHAPES.map(([name, type, query]) => {
    const all = type === '' ? [{}] : (samples.get(type) ?? [])
    const step = Math.max(1, Math.floor(all.length / VALUES))
    const picked = all.filter((_, i) => i % step === 0).slice(0, VALUES)
    return { name, queries: [...new Set(picked.map((sample) => filled(query, sample)))] }
  })
}

function filled(query: string, sample: object): string {
  return query.replace(/\{([\w.]+)(?::(\d+))?\}/g, (_whole, path: string, length?: string) => {
    const value = path.split('.').reduce<unknown>((at, name) => Object(at)[name], sample)
    return encodeURIComponent(String(value).slice(0, Number(length ?? Number.POSITIVE_INFINITY)))
  })
}
