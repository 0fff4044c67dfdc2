/** Generates the resources of a hospital, twenty for each patient, and the searches of its data. */
import type { Resource } from '../../shared/fhir/resource.ts'
import { seeded } from '../../test/fixtures/policy/oracle.ts'

const A_PATIENT = 20
const PER_PATIENT = { Patient: 1, Encounter: 3, Condition: 2, Observation: 14 } as const
type Kind = keyof typeof PER_PATIENT

/** Each has this many matches at any size. */
const RARE = 20
/** One Observation in this many is of one of two days. */
const BUSY = 50
const BUSY_DAYS = ['2024-03-01', '2025-03-01']
const DAYS = 3650
const FIRST_DAY = Date.UTC(2016, 0, 1)
const DAY_MS = 86_400_000
const STEMS = 'Bauer Costa Dahl Ferrari Gomez Horvat Jung Klein Lopes Meyer'.split(' ')
const FAMILIES = STEMS.flatMap((stem) =>
  ['', 'ez', 'er', 'ini', 'ley', 'man', 'ov', 'sen', 'sky', 'ton'].map((end) => stem + end),
)
const GIVEN = 'Anna Ben Carla Dan Eva Finn Gila Hugo Ines Jan'.split(' ')
const CODES = 40
const LOINC = 'http://loinc.org'
const SNOMED = 'http://snomed.info/sct'
const MRN = 'urn:bench:mrn'

export interface Hospital {
  readonly patients: number
  readonly counts: Readonly<Record<Kind, number>>
  readonly generate: (kind: Kind, n: number) => Resource
  readonly id: (kind: Kind, n: number) => string
}

/** `number` keeps the ids of hospitals apart. */
export function buildHospital(number: number, resources: number): Hospital {
  const patients = Math.ceil(resources / A_PATIENT)
  const kinds = Object.keys(PER_PATIENT) as Kind[]
  const id = (kind: Kind, n: number) =>
    `${kinds.indexOf(kind)}000000${number}-0000-4000-8000-${String(n).padStart(12, '0')}`
  const counts = Object.fromEntries(
    kinds.map((kind) => [kind, patients * PER_PATIENT[kind]]),
  ) as Hospital['counts']
  const generate = (kind: Kind, n: number): Resource => {
    const patient = kind === 'Patient' ? n : Math.floor(n / PER_PATIENT[kind])
    const subject = { reference: `Patient/${id('Patient', patient)}` }
    const isRare = n % Math.ceil(counts[kind] / RARE) === 0
    // Neighbouring seeds begin alike.
    const random = seeded(Math.imul(n + 1, 2_654_435_761) + kinds.indexOf(kind))
    random(1)
    return { ...GENERATORS[kind]({ n, patients, random, subject, isRare }), id: id(kind, n) }
  }
  return { patients, counts, generate, id }
}

interface Seed {
  readonly n: number
  readonly patients: number
  readonly random: (below: number) => number
  readonly subject: { readonly reference: string }
  readonly isRare: boolean
}

const two = (n: number) => String(n).padStart(2, '0')
const dayAt = (n: number) => new Date(FIRST_DAY + n * DAY_MS).toISOString().slice(0, 10)
/** The first of 100 gets a tenth of all. */
const skewed = (random: Seed['random'], below: number) =>
  Math.floor(below * (random(100_000) / 100_000) ** 2)
const sharedByFive = (n: number, patients: number) => `Nr${1e7 + (n % Math.ceil(patients / 5))}`
const observed = (code: number) => `${10_000 + code}-1`
const diagnosed = (code: number) => String(230_000 + code)

const GENERATORS: Readonly<Record<Kind, (seed: Seed) => Resource>> = {
  Patient: ({ n, patients, random }) => ({
    resourceType: 'Patient',
    identifier: [{ system: MRN, value: `m${n}` }],
    active: random(20) > 0,
    name: [
      {
        family: FAMILIES[skewed(random, FAMILIES.length)],
        given: [GIVEN[random(GIVEN.length)], sharedByFive(n, patients)],
      },
    ],
    gender: random(2) ? 'female' : 'male',
    birthDate: `${1930 + random(90)}-${two(1 + random(12))}-${two(1 + random(28))}`,
    address: [{ city: 'Springfield', postalCode: String(90_000 + random(999)) }],
  }),
  Encounter: ({ random, subject }) => {
    const day = dayAt(random(DAYS))
    return {
      resourceType: 'Encounter',
      status: random(50) ? 'finished' : 'in-progress',
      class: { code: ['AMB', 'AMB', 'IMP', 'EMER'][random(4)] },
      subject,
      period: { start: `${day}T09:00:00Z`, end: `${day}T${10 + random(10)}:30:00Z` },
    }
  },
  Condition: ({ random, subject, isRare }) => ({
    resourceType: 'Condition',
    clinicalStatus: { coding: [{ code: random(3) ? 'active' : 'resolved' }] },
    code: {
      coding: [{ system: SNOMED, code: isRare ? 'rare' : diagnosed(skewed(random, CODES)) }],
    },
    subject,
    onsetDateTime: dayAt(random(DAYS)),
  }),
  Observation: ({ random, subject, isRare }) => {
    const day = random(BUSY) ? dayAt(random(DAYS)) : BUSY_DAYS[random(2)]
    return {
      resourceType: 'Observation',
      status: random(10) ? 'final' : 'preliminary',
      category: [{ coding: [{ code: random(2) ? 'vital-signs' : 'laboratory' }] }],
      code: {
        coding: [{ system: LOINC, code: isRare ? 'rare' : observed(skewed(random, CODES)) }],
      },
      subject,
      effectiveDateTime: `${day}T${two(random(24))}:${two(random(60))}:00Z`,
      valueQuantity: {
        value: random(2000) / 10,
        unit: 'mg/dL',
        system: 'http://unitsofmeasure.org',
        code: 'mg/dL',
      },
    }
  },
}

/** Searches by name; * finds as many rows at any size. */
const SHAPES: Readonly<Record<string, string>> = {
  'identifier *': 'Patient?identifier={mrn}',
  'rare name *': 'Patient?given={rareName}',
  'shared name': 'Patient?family={family}',
  'shared name :exact': 'Patient?family:exact={family}',
  'shared name :contains': 'Patient?family:contains={part}',
  'shared prefix': 'Patient?name={stem}',
  'two shared names': 'Patient?family={family}&given={given}',
  'shared name and birth date': 'Patient?name={family}&birthdate=ge1960&birthdate=lt2000',
  'shared name by birth date': 'Patient?name={family}&_sort=birthdate',
  'all by name': 'Patient?_sort=family',
  'all by name, descending': 'Patient?_sort=-family,given',
  'gender by name': 'Patient?gender=male&_sort=name',
  'gender:not': 'Patient?gender:not=male',
  'no such name': 'Patient?name=zzyzx',
  _filter: 'Patient?_filter=family%20eq%20"{family}"%20and%20birthdate%20ge%201990-01-01',
  '_revinclude *': 'Patient?_id={patient}&_revinclude=Observation:subject',
  '_has common code': 'Patient?_has:Observation:patient:code=10000-1',
  '_has code': 'Patient?_has:Observation:patient:code={code}',
  '_has rare code *': 'Patient?_has:Observation:patient:code=rare',
  '_has code and shared name': 'Patient?family={family}&_has:Observation:patient:code={code}',
  '_has busy day': 'Patient?_has:Observation:patient:date={busyDay}',
  'two _has':
    'Patient?_has:Condition:patient:code={diagnosis}&_has:Observation:patient:code={code}',
  'shared name, total': 'Patient?family={family}&_total=accurate',
  '_has code, total': 'Patient?_has:Condition:patient:code={diagnosis}&_total=accurate',
  'patient and code, newest *': 'Observation?patient={patient}&code={code}&_sort=-date',
  '_include *': 'Observation?patient={patient}&_include=Observation:subject',
  'code, newest': 'Observation?code={code}&_sort=-date',
  'rare code, newest *': 'Observation?code=rare&_sort=-date',
  'code and date range': 'Observation?code={code}&date=ge{day}',
  'three codes and date range': 'Observation?code={code},10007-1,rare&date=ge{day}',
  'a day': 'Observation?date={day}',
  'a busy day': 'Observation?date={busyDay}',
  'code and busy day': 'Observation?code={code}&date={busyDay}',
  'code and busy day by value': 'Observation?code={code}&date={busyDay}&_sort=value-quantity',
  'preliminary, newest': 'Observation?status=preliminary&_sort=-date',
  quantity: 'Observation?value-quantity=gt{high}',
  'quantity and code': 'Observation?value-quantity=gt{high}&code={code}',
  'all by value': 'Observation?_sort=value-quantity',
  'all by value, descending': 'Observation?_sort=-value-quantity',
  'page of 100': 'Observation?status=final&_count=100',
  'page 50': 'Observation?status=final&_offset=1000',
  'chain to identifier *': 'Observation?patient.identifier={mrn}',
  'chain to rare name *': 'Observation?patient.given={rareName}',
  'chain to shared name': 'Observation?patient.family={family}',
  'chain to shared name, newest': 'Observation?patient.family={family}&code={code}&_sort=-date',
  'code:not': 'Observation?code:not={code}',
  'status:not=final': 'Observation?status:not=final',
  ':missing=false of none': 'Observation?encounter:missing=false',
  'oldest changes': 'Observation?_lastUpdated=gt2026-01-01&_sort=_lastUpdated',
  'code, total': 'Observation?code={code}&_total=accurate',
  'code:not, total': 'Observation?code:not={code}&_total=accurate',
  'busy day, total': 'Observation?date={busyDay}&_total=accurate',
  'range of dates, total': 'Observation?date=ge{day}&_total=accurate',
  'chain, total': 'Observation?patient.family={family}&_total=accurate',
  'total of all': 'Observation?_summary=count',
  'estimated total': 'Observation?code={code}&_total=estimate',
  'encounters in progress': 'Encounter?status=in-progress&_sort=-date',
  'compartment *': 'Patient/{patient}/Observation',
  'two types': '?_type=Patient,Observation&_lastUpdated=gt2026-01-01',
}

type Shape = readonly [name: string, query: (n: number) => string]

export function buildShapes({ patients, id }: Hospital): readonly Shape[] {
  const some = (n: number) => (n * 7919) % patients
  const values: Readonly<Record<string, (n: number) => string>> = {
    mrn: (n) => `${MRN}|m${some(n)}`,
    patient: (n) => id('Patient', some(n)),
    rareName: (n) => sharedByFive(n, patients),
    family: (n) => FAMILIES[n % STEMS.length] ?? '',
    given: (n) => GIVEN[n % GIVEN.length] ?? '',
    stem: (n) => STEMS[n % STEMS.length] ?? '',
    part: (n) => STEMS[n % STEMS.length]?.slice(1) ?? '',
    code: (n) => `${LOINC}|${observed(n % CODES)}`,
    diagnosis: (n) => `${SNOMED}|${diagnosed(n % CODES)}`,
    day: (n) => dayAt((n * 37) % DAYS),
    busyDay: (n) => BUSY_DAYS[n % BUSY_DAYS.length] ?? '',
    high: (n) => String(190 + (n % 10)),
  }
  return Object.entries(SHAPES).map(([name, text]): Shape => {
    const query = (n: number) =>
      text.replaceAll(/\{(\w+)\}/g, (_whole, value: string) => values[value]?.(n) ?? '')
    return [name, query]
  })
}
