/**
 * Input: an HL7v2 ORU^R01 message. Finds or creates the patient by medical record number; each OBR becomes a
 * DiagnosticReport and each OBX below it an Observation, all in one transaction. A repeated message updates the same
 * resources. Answer: the acknowledgment.
 */
import {
  type BotEvent,
  createReference,
  type Hl7Message,
  Hl7Segment,
  type MedplumClient,
  normalizeErrorString,
  parseHl7DateTime,
} from '@medplum/core'
import type {
  BundleEntry,
  CodeableConcept,
  Observation,
  Patient,
  Reference,
} from '@medplum/fhirtypes'

const numbers = 'https://example.org/fhir/sid/mrn'
const fillers = 'https://example.org/fhir/sid/filler-order'
const results = 'https://example.org/fhir/sid/result'
const statuses: Record<string, Observation['status']> = {
  C: 'corrected',
  F: 'final',
  P: 'preliminary',
}

export async function handler(medplum: MedplumClient, event: BotEvent<Hl7Message>) {
  const message = event.input
  try {
    if (message.header.getComponent(9, 1) !== 'ORU') throw new Error('Not a message of results')
    const patient = await savePatient(medplum, message)
    const entry = toEntries(message, createReference(patient))
    await medplum.executeBatch({ resourceType: 'Bundle', type: 'transaction', entry })
    return message.buildAck()
  } catch (error) {
    const text = ['ERR', '', '', '207', 'E', '', '', '', normalizeErrorString(error)]
    return message.buildAck({ ackCode: 'AE', errSegment: new Hl7Segment(text, message.context) })
  }
}

async function savePatient(medplum: MedplumClient, message: Hl7Message): Promise<Patient> {
  const pid = message.getSegment('PID')
  const value = pid?.getComponent(3, 1) || pid?.getComponent(2, 1)
  if (!pid || !value) throw new Error('No medical record number')
  const patient: Patient = {
    resourceType: 'Patient',
    identifier: [{ system: numbers, value }],
    name: [{ family: pid.getComponent(5, 1), given: [pid.getComponent(5, 2)] }],
    gender: pid.getComponent(8, 1) === 'F' ? 'female' : 'male',
    birthDate: parseHl7DateTime(pid.getComponent(7, 1))?.slice(0, 10) ?? '',
  }
  return medplum.createResourceIfNoneExist(patient, `identifier=${numbers}|${value}`)
}

/** A report goes in before its results; both are found again by their numbers. */
function toEntries(message: Hl7Message, subject: Reference<Patient>): BundleEntry[] {
  const entries: BundleEntry[] = []
  let order = ''
  for (const segment of message.segments) {
    if (segment.name === 'OBR') {
      order = segment.getComponent(3, 1)
      entries.push(reportEntry(segment, order, subject))
    }
    if (segment.name !== 'OBX') continue
    const entry = resultEntry(segment, `${order}-${segment.getComponent(1, 1)}`, subject)
    entries.push(entry)
    const report = entries.findLast(({ resource }) => resource?.resourceType === 'DiagnosticReport')
    if (report?.resource?.resourceType === 'DiagnosticReport') {
      report.resource.result?.push({ reference: entry.fullUrl ?? '' })
    }
  }
  return entries
}

function reportEntry(obr: Hl7Segment, order: string, subject: Reference<Patient>): BundleEntry {
  return {
    fullUrl: `urn:uuid:${crypto.randomUUID()}`,
    request: { method: 'PUT', url: `DiagnosticReport?identifier=${fillers}|${order}` },
    resource: {
      resourceType: 'DiagnosticReport',
      identifier: [{ system: fillers, value: order }],
      status: statuses[obr.getComponent(25, 1)] === 'final' ? 'final' : 'registered',
      code: toConcept(obr, 4),
      subject,
      result: [],
    },
  }
}

function resultEntry(obx: Hl7Segment, number: string, subject: Reference<Patient>): BundleEntry {
  const text = obx.getComponent(5, 1)
  const isNumber = obx.getComponent(2, 1) === 'NM' && text !== ''
  const time = parseHl7DateTime(obx.getComponent(14, 1))
  const range = obx.getComponent(7, 1)
  return {
    fullUrl: `urn:uuid:${crypto.randomUUID()}`,
    request: { method: 'PUT', url: `Observation?identifier=${results}|${number}` },
    resource: {
      resourceType: 'Observation',
      identifier: [{ system: results, value: number }],
      status: statuses[obx.getComponent(11, 1)] ?? 'registered',
      code: toConcept(obx, 3),
      subject,
      ...(time && { effectiveDateTime: time }),
      ...(isNumber
        ? { valueQuantity: { value: Number(text), unit: obx.getComponent(6, 1) } }
        : { valueString: obx.getField(5)?.toString() ?? '' }),
      ...(range && { referenceRange: [{ text: range }] }),
    },
  }
}

function toConcept(segment: Hl7Segment, field: number): CodeableConcept {
  const code = segment.getComponent(field, 1)
  const display = segment.getComponent(field, 2)
  const isLoinc = segment.getComponent(field, 3) === 'LN'
  return {
    coding: [{ ...(isLoinc && { system: 'http://loinc.org' }), code, display }],
    text: display,
  }
}
