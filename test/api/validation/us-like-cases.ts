/** Changes that violate a US Core-like profile, with the expected issues. */
import type { Raw } from '../../fixtures/oracle/values.ts'

export const OWN = 'http://example.org/fhir/us-like'
export const RACE_SYSTEM = 'urn:oid:2.16.840.1.113883.6.238'

export function notBound(code: string, valueSet: string): string {
  return `Value "${code}" did not satisfy terminology binding ${OWN}/ValueSet/${valueSet}`
}

type Change = (resource: Raw) => void
type Expected = readonly [text: string, expression: string]
type Case = readonly [name: string, profile: string, change: Change, ...Expected[]]

export const cases: readonly Case[] = [
  [
    'a patient without names',
    'patient',
    (patient) => delete patient.name,
    ['Missing required property', 'Patient.name'],
  ],
  [
    'a name without family and given',
    'patient',
    (patient) => {
      patient.name[1] = { use: 'maiden', text: 'Schmitt' }
    },
    [
      'Constraint us-like-8 not met: Patient.name.given or Patient.name.family or both SHALL be present',
      'Patient.name[1]',
    ],
  ],
  [
    'a race outside of its categories',
    'patient',
    (patient) => {
      patient.extension[0].extension[0].valueCoding.code = '2113-9'
    },
    [
      notBound(`${RACE_SYSTEM}|2113-9`, 'race-categories'),
      'Patient.extension[0].extension[0].valueCoding',
    ],
  ],
  [
    'a race in detail that is an ethnicity',
    'patient',
    (patient) => {
      const valueCoding = { system: RACE_SYSTEM, code: '2148-5' }
      patient.extension[0].extension.push({ url: 'detailed', valueCoding })
    },
    [
      notBound(`${RACE_SYSTEM}|2148-5`, 'detailed-race'),
      'Patient.extension[0].extension[2].valueCoding',
    ],
  ],
  [
    'a race without its text',
    'patient',
    (patient) => patient.extension[0].extension.pop(),
    [
      "Incorrect number of values provided for slice 'text': expected 1..1, but found 0",
      'Patient.extension[0].extension',
    ],
  ],
  [
    'a text that is too long',
    'patient',
    (patient) => {
      patient.extension[1].extension[1].valueString = 'x'.repeat(201)
    },
    ['Value is longer than 200 characters', 'Patient.extension[1].extension[1].valueString'],
  ],
  [
    'two ethnicities',
    'patient',
    (patient) => patient.extension.push(patient.extension[1]),
    [
      "Incorrect number of values provided for slice 'ethnicity': expected 0..1, but found 2",
      'Patient.extension',
    ],
  ],
  [
    'a birth sex that is not a code of the list',
    'patient',
    (patient) => {
      const birthsex = patient.extension.find((item: Raw) => item.url.endsWith('birthsex'))
      patient.extension = [birthsex]
      birthsex.valueCode = 'X'
    },
    [notBound('X', 'birthsex'), 'Patient.extension[0].valueCode'],
  ],
  [
    'an identifier without system and a birth long ago',
    'patient',
    (patient) => {
      delete patient.identifier[0].system
      patient.birthDate = '1849-12-31'
    },
    ['Missing required property', 'Patient.identifier[0].system'],
    ['Value is below the minimum 1850-01-01', 'Patient.birthDate'],
  ],
  [
    'a vital sign of another category',
    'body-height',
    (height) => {
      height.category[0].coding[0].code = 'exam'
    },
    [
      "Incorrect number of values provided for slice 'VSCat': expected 1..1, but found 0",
      'Observation.category',
    ],
  ],
  [
    'the height of a giant, under another code',
    'body-height',
    (height) => {
      height.code.coding[0].code = '29463-7'
      height.valueQuantity.value = 301
    },
    ['Value did not match expected pattern', 'Observation.code'],
    ['Value is above the maximum 300', 'Observation.valueQuantity.value'],
  ],
  [
    'a height in metres',
    'body-height',
    (height) => {
      height.valueQuantity.code = 'm'
    },
    [notBound('m', 'length-units'), 'Observation.valueQuantity.code'],
  ],
  [
    'a value that is not a quantity',
    'body-height',
    (height) => {
      delete height.valueQuantity
      height.valueString = 'tall'
    },
    ['Value is in none of the slices that are allowed', 'Observation.valueString'],
  ],
  [
    'a vital sign without value and without time',
    'body-height',
    (height) => {
      delete height.valueQuantity
      delete height.effectiveDateTime
    },
    ['Missing required property', 'Observation.effective[x]'],
    [
      'Constraint us-like-vs-2 not met: If there is no component or hasMember element then either a value[x] or a data absent reason must be present.',
      'Observation',
    ],
  ],
  [
    'a time that is only a month',
    'vital-signs',
    (sign) => {
      sign.effectiveDateTime = '2012-03'
    },
    [
      'Constraint us-like-vs-1 not met: if Observation.effective[x] is dateTime and has a value then that value shall be precise to the day',
      'Observation.effectiveDateTime',
    ],
  ],
  [
    'a blood pressure without its diastolic part',
    'blood-pressure',
    (pressure) => pressure.component.shift(),
    ['Invalid number of values: expected 2..*, but found 1', 'Observation.component'],
    [
      "Incorrect number of values provided for slice 'diastolic': expected 1..1, but found 0",
      'Observation.component',
    ],
  ],
  [
    'a pressure in another unit',
    'blood-pressure',
    (pressure) => {
      pressure.component[0].valueQuantity.code = 'kPa'
    },
    ['Value did not match expected pattern', 'Observation.component[0].valueQuantity.code'],
  ],
  [
    'a laboratory result of no category of that kind',
    'observation-lab',
    (lab) => {
      lab.category[0].coding[0].system = 'http://example.org/categories'
    },
    [
      "Incorrect number of values provided for slice 'Laboratory': expected 1..1, but found 0",
      'Observation.category',
    ],
  ],
  [
    'a survey that is in none of the bound categories, with an answer outside of its list',
    'smoking-status',
    (status) => {
      status.category[0].coding[0].code = 'exam'
      status.valueCodeableConcept.coding[0].code = '1'
    },
    [
      "Incorrect number of values provided for slice 'survey': expected 1..*, but found 0",
      'Observation.category',
    ],
  ],
  [
    'an answer outside of its list',
    'smoking-status',
    (status) => {
      status.valueCodeableConcept.coding[0].code = '1'
    },
    [notBound('http://snomed.info/sct|1', 'smoking-status'), 'Observation.valueCodeableConcept'],
  ],
]
