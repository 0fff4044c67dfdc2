/** Names of records, as a person would call them, and lookups of the names behind references. */
import { formatCodeableConcept, formatHumanName, isObject, isReference } from '@medplum/core'
import type { Bundle, CodeableConcept, HumanName, Resource } from '@medplum/fhirtypes'
import { useQuery } from '@tanstack/react-query'
import { medplum } from './session.ts'

/** In order; the first that a record has names it. */
const NAMING = ['name', 'title', 'code', 'medication[x]', 'vaccineCode', 'type', 'serviceType']
const ALSO_NAMING = ['category', 'subtype', 'description', 'criteria', 'url', 'display']
const ID_DIGITS = 6

/** Returns a human name, a code's text or a title; the type and the end of the id for a record without any. */
export function recordTitle(record: Resource): string {
  const contained = containedMedication(record)
  if (contained !== undefined) return recordTitle(contained)
  for (const name of [...NAMING, ...ALSO_NAMING]) {
    // The category of a medication's record is the place where it is taken, such as "Community".
    if (name === 'category' && record.resourceType.startsWith('Medication')) continue
    const title = titleText(readElement(record, name))
    if (title !== '') return title
  }
  return shortReference(`${record.resourceType}/${record.id ?? ''}`)
}

/** Returns birth date and record number, which distinguish records with the same name. */
export function recordDetail(record: Resource): string {
  const identifiers = readElement(record, 'identifier')
  const known: readonly unknown[] = Array.isArray(identifiers) ? identifiers : [identifiers]
  const number = known.find(isRecordNumber) ?? known[0]
  return [readElement(record, 'birthDate'), isObject(number) ? number.value : undefined]
    .filter((text) => typeof text === 'string')
    .join(' · ')
}

/** https://hl7.org/fhir/R4/valueset-identifier-type.html */
function isRecordNumber(identifier: unknown): boolean {
  const type = isObject(identifier) ? identifier.type : undefined
  return isObject(type) && Array.isArray(type.coding) && type.coding[0]?.code === 'MR'
}

function containedMedication(record: Resource): Resource | undefined {
  const medication = readElement(record, 'medication[x]')
  if (!isReference(medication) || medication.display || !('contained' in record)) return undefined
  return record.contained?.find(({ id }) => medication.reference === `#${id}`)
}

const RECORD = /^[A-Z]\w+\/[\w.-]+$/

/** True for a reference of the form `Type/id`. */
export function isRecordReference(reference: string): boolean {
  return RECORD.test(reference)
}

/** Like `recordTitle`; a medication given by reference names its requests. */
export function useRecordTitle(record: Resource): string {
  const medication = readElement(record, 'medication[x]')
  const { reference = '', display = '' } = isReference(medication) ? medication : {}
  const isElsewhere = display === '' && isRecordReference(reference)
  const title = useTitle(reference, isElsewhere)
  return isElsewhere ? title : recordTitle(record)
}

/** Returns the value of an element, of any type for `value[x]`. */
export function readElement(record: object, name: string): unknown {
  if (!name.endsWith('[x]')) return Object.entries(record).find(([key]) => key === name)?.[1]
  const start = name.slice(0, -3)
  return Object.entries(record).find(([key]) => key.startsWith(start) && key !== start)?.[1]
}

function titleText(value: unknown): string {
  if (Array.isArray(value)) return titleText(value.find(isUsual) ?? value[0])
  if (typeof value === 'string') return value
  if (!isObject(value)) return ''
  if (isReference(value)) return value.display ?? ''
  if ('family' in value || 'given' in value || 'prefix' in value) {
    return formatHumanName(value as HumanName)
  }
  if ('coding' in value || 'text' in value) return formatCodeableConcept(value as CodeableConcept)
  const { display, code } = value
  return typeof display === 'string' ? display : typeof code === 'string' ? code : ''
}

function isUsual(value: unknown): boolean {
  return isObject(value) && (value.use === 'official' || value.use === 'usual')
}

function shortReference(reference: string): string {
  const [type = '', id = ''] = reference.split('/')
  return id === '' ? type : `${type} …${id.slice(-ID_DIGITS)}`
}

/** Returns the name of the record behind `Type/id`; the reference in short while it is unknown. */
export function useTitle(reference: string, enabled = true): string {
  const { data } = useQuery({
    queryKey: ['title', reference],
    queryFn: () => findTitle(reference),
    enabled,
    staleTime: 60_000,
  })
  return data ?? shortReference(reference)
}

const PAUSE_MS = 10
const MOST_IDS = 100
type Waiting = (title: string | null) => void
const waiting = new Map<string, Waiting[]>()

/** Waits for other references of the page, so that a type is read by one search. */
function findTitle(reference: string): Promise<string | null> {
  if (waiting.size === 0) setTimeout(() => void answerWaiting(), PAUSE_MS)
  return new Promise((resolve) => {
    waiting.set(reference, [...(waiting.get(reference) ?? []), resolve])
  })
}

async function answerWaiting(): Promise<void> {
  const asked = new Map(waiting)
  waiting.clear()
  const byType = Map.groupBy(asked.keys(), (reference) => reference.split('/')[0] ?? '')
  await Promise.all([...byType].map(([type, references]) => answerType(type, references, asked)))
}

async function answerType(
  type: string,
  references: readonly string[],
  asked: ReadonlyMap<string, readonly Waiting[]>,
): Promise<void> {
  for (let start = 0; start < references.length; start += MOST_IDS) {
    const part = references.slice(start, start + MOST_IDS)
    const ids = part.map((reference) => reference.split('/')[1] ?? '')
    const query = new URLSearchParams({
      _id: ids.join(','),
      _count: String(MOST_IDS),
      // Types of the platform mark no element as part of a summary.
      _elements: [...NAMING, ...ALSO_NAMING].map((name) => name.replace('[x]', '')).join(','),
    })
    // A record that may not be read keeps its reference.
    const found = await medplum
      .get<Bundle>(`fhir/R4/${type}?${query}`)
      .then(({ entry = [] }) => entry.flatMap(({ resource }) => resource ?? []))
      .catch(() => [])
    const titles = new Map(found.map((record) => [`${type}/${record.id}`, recordTitle(record)]))
    for (const reference of part) {
      for (const resolve of asked.get(reference) ?? []) resolve(titles.get(reference) ?? null)
    }
  }
}
