/**
 * A bot that keeps patients and visits in step with a hospital's ADT feed.
 *
 * Input: any HL7v2 ADT message. PID becomes a Patient, found by its medical record number; PV1 becomes
 * an Encounter, found by its visit number. Answer: the acknowledgment; a message that cannot be used gets
 * AR (rejected) or AE (error) with an ERR segment that gives the reason.
 */
import {
  type BotEvent,
  Hl7Field,
  Hl7Message,
  Hl7Segment,
  isEmpty,
  type MedplumClient,
  normalizeErrorString,
  parseHl7DateTime,
} from '@medplum/core'
import type {
  Address,
  ContactPoint,
  Encounter,
  HumanName,
  Identifier,
  Patient,
} from '@medplum/fhirtypes'

// Identifiers whose assigning authority has no global id get a system below this address.
const localSystem = 'https://example.org/fhir/sid'
const identifierTypes = 'http://terminology.hl7.org/CodeSystem/v2-0203'

// HL7 table 0357.
const meanings = {
  100: 'Segment sequence error',
  101: 'Required field missing',
  200: 'Unsupported message type',
  207: 'Application internal error',
}

export async function handler(
  medplum: MedplumClient,
  event: BotEvent<Hl7Message | string>,
): Promise<Hl7Message> {
  const message = readMessage(event.input)
  if (message === undefined) {
    return refuse(Hl7Message.parse('MSH|^~\\&'), 'AR', 100, '', 'Not an HL7v2 message')
  }
  const type = message.header.getComponent(9, 1)
  if (type !== 'ADT') return refuse(message, 'AR', 200, 'MSH^1^9', `Not an ADT message: ${type}`)
  const pid = message.getSegment('PID')
  if (pid === undefined) return refuse(message, 'AE', 100, 'PID', 'No PID segment')
  const number = recordNumber(pid)
  if (number === undefined) return refuse(message, 'AE', 101, 'PID^1^3', 'No patient identifier')
  try {
    const patient = await savePatient(medplum, message, pid, number)
    await saveEncounter(medplum, message, patient)
    return message.buildAck()
  } catch (error) {
    return refuse(message, 'AE', 207, '', normalizeErrorString(error))
  }
}

function readMessage(input: Hl7Message | string): Hl7Message | undefined {
  if (typeof input !== 'string') return typeof input?.getSegment === 'function' ? input : undefined
  return input.startsWith('MSH') ? Hl7Message.parse(input) : undefined
}

/** An acknowledgment with the reason in ERR: https://hl7-definition.caristix.com/v2/HL7v2.5.1/Segments/ERR */
function refuse(
  message: Hl7Message,
  ackCode: 'AE' | 'AR',
  problem: keyof typeof meanings,
  location: string,
  reason: string,
): Hl7Message {
  const { context } = message
  const components = (...list: unknown[]) => list.join(context.componentSeparator)
  const place = components(...location.split('^'))
  const code = components(problem, meanings[problem], 'HL70357')
  const text = escapeText(reason, message)
  const errSegment = new Hl7Segment(['ERR', '', place, code, 'E', '', '', '', text], context)
  return message.buildAck({ ackCode, errSegment })
}

async function savePatient(
  medplum: MedplumClient,
  message: Hl7Message,
  pid: Hl7Segment,
  number: Identifier,
): Promise<Patient> {
  const others = repetitions(pid, 3).map((field) => toIdentifier(field, 'id'))
  const patient: Patient = {
    resourceType: 'Patient',
    ...filled<Omit<Patient, 'resourceType'>>({
      identifier: [number, ...others.filter((other) => other?.value !== number.value)],
      // A29 deletes the person: the record stays, but must not be used any more.
      active: readTrigger(message) !== 'A29',
      name: repetitions(pid, 5).map(toHumanName),
      telecom: [
        ...repetitions(pid, 13).map((field) => toContactPoint(field, 'home')),
        ...repetitions(pid, 14).map((field) => toContactPoint(field, 'work')),
      ],
      gender: genders[part(pid.getField(8), 1)],
      birthDate: readBirthDate(part(pid.getField(7), 1)),
      address: repetitions(pid, 11).map(toAddress),
    }),
  }
  return medplum.upsertResource(patient, { identifier: token(number) })
}

async function saveEncounter(medplum: MedplumClient, message: Hl7Message, patient: Patient) {
  const pv1 = message.getSegment('PV1')
  const status = pv1 && encounterStatus(message, pv1)
  if (pv1 === undefined || status === undefined) return
  const number = toIdentifier(repetitions(pv1, 19)[0], 'visit', 'VN')
  const encounter: Encounter = {
    resourceType: 'Encounter',
    ...(number && { identifier: [number] }),
    status,
    class: {
      system: 'http://terminology.hl7.org/CodeSystem/v3-ActCode',
      ...(classes[part(pv1.getField(2), 1)] ?? ambulatory),
    },
    subject: { reference: `Patient/${patient.id}` },
    ...toPeriod(pv1),
  }
  if (number === undefined) await medplum.createResource(encounter)
  else await medplum.upsertResource(encounter, { identifier: token(number) })
}

type Loose = Readonly<Record<string, unknown>>

const genders: Loose = { A: 'other', F: 'female', M: 'male', N: 'other', O: 'other', U: 'unknown' }

const ambulatory = { code: 'AMB', display: 'ambulatory' }
const inpatient = { code: 'IMP', display: 'inpatient encounter' }
const classes: Record<string, { code: string; display: string }> = {
  B: inpatient,
  E: { code: 'EMER', display: 'emergency' },
  I: inpatient,
  P: { code: 'PRENC', display: 'pre-admission' },
}

// Events that are not listed speak of the person or of an account and leave visits alone.
const statuses: Partial<Record<Encounter['status'], string>> = {
  planned: 'A05 A14',
  'in-progress': 'A01 A02 A04 A06 A07 A08 A09 A10 A12 A13 A15 A16 A22 A25 A26',
  onleave: 'A21',
  finished: 'A03',
  cancelled: 'A11 A27 A38',
}

function readTrigger(message: Hl7Message): string {
  return message.header.getComponent(9, 2)
}

/** An update of a visit that has ended already does not open it again. */
function encounterStatus(message: Hl7Message, pv1: Hl7Segment): Encounter['status'] | undefined {
  const trigger = readTrigger(message)
  if (trigger === 'A08' && readTime(pv1, 45) !== undefined) return 'finished'
  const known = Object.keys(statuses) as Encounter['status'][]
  return known.find((status) => statuses[status]?.split(' ').includes(trigger))
}

function readTime(source: Hl7Segment, index: number): string | undefined {
  return parseHl7DateTime(part(source.getField(index), 1))
}

/** FHIR takes no period that ends before it starts. */
function toPeriod(pv1: Hl7Segment): Pick<Encounter, 'period'> {
  const start = readTime(pv1, 44)
  const end = readTime(pv1, 45)
  const isOrdered = start === undefined || end === undefined || start <= end
  return filled({ period: filled({ start, end: isOrdered ? end : undefined }) })
}

/** Keeps the precision of the message; leaves out a day that does not exist. */
function readBirthDate(value: string): string | undefined {
  const digits = /^\d{4,8}/.exec(value)?.[0] ?? ''
  const day = parseHl7DateTime(digits)?.slice(0, 10)
  return day?.slice(0, { 4: 4, 6: 7, 8: 10 }[digits.length] ?? 0) || undefined
}

/** The repetition that calls itself a medical record number; else the first. */
function recordNumber(pid: Hl7Segment): Identifier | undefined {
  const fields = repetitions(pid, 3)
  const marked = fields.find((field) => part(field, 5) === 'MR' && part(field, 1) !== '')
  return toIdentifier(marked ?? fields[0], 'mrn', 'MR')
}

/** A CX: number, and the authority that gave it. */
function toIdentifier(
  field: Hl7Field | undefined,
  kind: string,
  type = part(field, 5),
): Identifier | undefined {
  const value = part(field, 1)
  if (value === '') return undefined
  const system = identifierSystem(part(field, 4, 0), part(field, 4, 1), kind)
  const coding = [{ system: identifierTypes, code: type }]
  return { ...(/^[A-Z]{1,5}$/.test(type) && { type: { coding } }), system, value }
}

function identifierSystem(namespace: string, universalId: string, kind: string): string {
  if (/^[0-2](\.(0|[1-9]\d*))+$/.test(universalId)) return `urn:oid:${universalId}`
  return `${localSystem}/${kind}${namespace === '' ? '' : `/${encodeURIComponent(namespace)}`}`
}

/** A search token; the signs that mean something in a search are escaped. */
function token({ system, value }: Identifier): string {
  return `${system}|${value?.replace(/[\\,|$]/g, '\\$&')}`
}

const nameUses: Loose = { D: 'usual', L: 'official', M: 'maiden', N: 'nickname', T: 'temp' }

function toHumanName(field: Hl7Field): HumanName | undefined {
  const use = nameUses[part(field, 7)]
  const family = part(field, 1, 0)
  const [given, prefix, suffix] = [[2, 3], [5], [4, 6]].map((list) =>
    list.map((at) => part(field, at)),
  )
  return withUse<HumanName>(use, { family, given, prefix, suffix })
}

const addressUses: Loose = { B: 'work', BA: 'old', C: 'temp', H: 'home', HOME: 'home', O: 'work' }

function toAddress(field: Hl7Field): Address | undefined {
  const use = addressUses[part(field, 7)]
  // Street address, dwelling number and street name may come in one or in parts.
  const street = [0, 2, 1].map((at) => part(field, 1, at)).filter(Boolean)
  const line = [street.join(' '), part(field, 2)]
  const [city, state, postalCode, country] = [3, 4, 5, 6].map((at) => part(field, at))
  return withUse<Address>(use, { line, city, state, postalCode, country })
}

/** An XTN: the number as it is written, or put together from its parts. */
function toContactPoint(field: Hl7Field, place: 'home' | 'work'): ContactPoint | undefined {
  const equipment = part(field, 3)
  const email = part(field, 4) || (equipment === 'Internet' ? part(field, 1) : '')
  if (email) return { system: 'email', value: email, use: place }
  const value = part(field, 1) || [part(field, 6), part(field, 7)].filter(Boolean).join(' ')
  if (value === '') return undefined
  const system = equipment === 'FX' ? 'fax' : 'phone'
  return { system, value, use: equipment === 'CP' ? 'mobile' : place }
}

function repetitions(source: Hl7Segment, index: number): Hl7Field[] {
  const field = source.getField(index)
  if (field === undefined) return []
  return field.components.map((components) => new Hl7Field([components], field.context))
}

/** A component, unescaped and trimmed. HL7 writes two quotes for a value that is to be deleted. */
function part(field: Hl7Field | undefined, component: number, subcomponent?: number): string {
  const raw = field?.getComponent(component, subcomponent).trim() ?? ''
  return raw === '""' || field === undefined ? '' : unescapeText(raw, field)
}

const letters = ['F', 'S', 'T', 'R', 'E']

/** The separators in the order of the letters that stand for them in an escape sequence. */
function separators({ context }: Hl7Field | Hl7Message): string[] {
  const separators = [context.fieldSeparator, context.componentSeparator]
  separators.push(context.subcomponentSeparator, context.repetitionSeparator)
  return [...separators, context.escapeCharacter]
}

function unescapeText(value: string, field: Hl7Field): string {
  const { escapeCharacter } = field.context
  if (escapeCharacter === '') return value
  const pieces = value.split(escapeCharacter)
  const signs = separators(field)
  // Every second piece stood between two escape characters; formatting such as .br is dropped.
  return pieces
    .map((piece, at) => (at % 2 === 0 ? piece : (signs[letters.indexOf(piece)] ?? ' ')))
    .join('')
}

function escapeText(value: string, message: Hl7Message): string {
  const { escapeCharacter } = message.context
  const signs = separators(message)
  return Array.from(value.replace(/[\r\n]+/g, ' '), (sign) => {
    const letter = letters[signs.indexOf(sign)]
    return letter === undefined ? sign : escapeCharacter + letter + escapeCharacter
  }).join('')
}

/** Drops empty values, which FHIR does not allow. */
function filled<T extends object>(value: Loose): T {
  const isFilled = (part: unknown) => !isEmpty(part)
  const pairs = Object.entries(value).map(([key, part]) => [
    key,
    Array.isArray(part) ? part.filter(isFilled) : part,
  ])
  return Object.fromEntries(pairs.filter(([, part]) => isFilled(part)))
}

function withUse<T extends object>(use: unknown, value: Loose): T | undefined {
  const content = filled<T>(value)
  return isEmpty(content) ? undefined : filled<T>({ use, ...content })
}
