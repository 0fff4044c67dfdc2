/** Clinic resources for search benches: 53 per patient, namely a Patient with visits and measurements. */
import type { Resource } from '../../shared/fhir/resource.ts'

export const FAMILIES =
  'Aalto Bauer Costa Dahl Egger Ferrari Gomez Horvat Ito Jung Klein Lopes Meyer Novak Olsen Popa Riva Sato Toth Weber'.split(
    ' ',
  )
export const CODES = '8867-4 9279-1 8310-5 29463-7 8302-2 2339-0 718-7 2951-2 2823-3 4548-4'.split(
  ' ',
)
export const SYSTEM = 'urn:bench:patient'
export const A_PATIENT = 53
const GIVEN = ['Anna', 'Ben', 'Carla', 'Dan', 'Eva', 'Finn', 'Gila', 'Hugo', 'Ines', 'Jan']
const VISITS = 2
const MEASURED = 50

const some = (n: number, of: number) => (Math.imul(n + 1, 2_654_435_761) >>> 8) % of
const two = (n: number) => String(n).padStart(2, '0')

export const birthDate = (n: number) =>
  `${1930 + some(n, 90)}-${two(1 + some(n + 7, 12))}-${two(1 + some(n + 13, 28))}`

export function patient(n: number): Resource {
  return {
    resourceType: 'Patient',
    identifier: [{ system: SYSTEM, value: `p${n}` }],
    active: true,
    name: [
      {
        use: 'official',
        family: FAMILIES[n % FAMILIES.length],
        given: [GIVEN[some(n, GIVEN.length)]],
      },
    ],
    telecom: [{ system: 'phone', value: `+1555${n}` }],
    gender: n % 2 ? 'female' : 'male',
    birthDate: birthDate(n),
    address: [
      {
        line: [`${n} Main Street`],
        city: 'Springfield',
        state: 'CA',
        postalCode: String(90_000 + (n % 999)),
      },
    ],
  }
}

export function generatePatientRecords(n: number, id: string): readonly Resource[] {
  const subject = { reference: `Patient/${id}` }
  const day = (i: number) => `2025-${two(1 + some(n + i, 12))}-${two(1 + some(n + 3 * i, 28))}`
  const visits = Array.from({ length: VISITS }, (_, i) => ({
    resourceType: 'Encounter',
    status: 'finished',
    class: { system: 'http://terminology.hl7.org/CodeSystem/v3-ActCode', code: 'AMB' },
    subject,
    period: { start: `${day(i)}T09:00:00Z`, end: `${day(i)}T09:30:00Z` },
  }))
  const measured = Array.from({ length: MEASURED }, (_, i) => {
    const code = CODES[i % CODES.length]
    return {
      resourceType: 'Observation',
      status: 'final',
      category: [
        {
          coding: [
            {
              system: 'http://terminology.hl7.org/CodeSystem/observation-category',
              code: 'vital-signs',
            },
          ],
        },
      ],
      code: {
        coding: [{ system: 'http://loinc.org', code, display: `Measurement ${code}` }],
        text: `Measurement ${code}`,
      },
      subject,
      effectiveDateTime: `${day(i)}T10:${two(i)}:00Z`,
      valueQuantity: {
        value: some(n + i, 200),
        unit: 'kg',
        system: 'http://unitsofmeasure.org',
        code: 'kg',
      },
    }
  })
  return [...visits, ...measured]
}
