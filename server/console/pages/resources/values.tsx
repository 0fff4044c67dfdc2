/** Display of record types and elements. */
import {
  formatAddress,
  formatCodeableConcept,
  formatHumanName,
  formatPeriod,
  formatRange,
  isObject,
} from '@medplum/core'
import type { Resource } from '@medplum/fhirtypes'
import { Link } from 'wouter'
import { Digits } from '../../client/exact.ts'
import { isRecordReference, readElement, useRecordTitle, useTitle } from '../../client/titles.ts'
import { When } from '../../parts/when.tsx'
import { fill, texts } from '../../texts/texts.ts'

const MOST_ITEMS = 3

interface ValueProps {
  readonly value: unknown
  /** Items of a list that are shown; the others are counted. */
  readonly most?: number
}

export function Value({ value, most = MOST_ITEMS }: ValueProps) {
  if (value === undefined || value === null) return null
  if (Array.isArray(value)) {
    return <Items items={value} most={most} />
  }
  if (typeof value === 'string' && /^\d{4}-\d\d-\d\dT/.test(value)) return <When at={value} />
  if (typeof value === 'string' && /^\d{4}-\d\d(-\d\d)?$/.test(value)) return <time>{value}</time>
  if (typeof value === 'number' || value instanceof Digits) return <Rounded value={value} />
  if (!isObject(value)) return <>{String(value)}</>
  if (isQuantity(value)) {
    const { comparator = '', value: number, unit = value.code ?? '' } = value
    return (
      <>
        {comparator}
        <Rounded value={number} unit={unit === '%' || unit === '' ? unit : ` ${unit}`} />
      </>
    )
  }
  const { reference, display } = value
  if (typeof reference !== 'string') return <>{formatComplexValue(value)}</>
  if (!isRecordReference(reference)) return <>{display ?? reference}</>
  return <RecordLink reference={reference} display={display} />
}

interface ItemsProps {
  readonly items: readonly unknown[]
  readonly most: number
}

function Items({ items, most }: ItemsProps) {
  const others = items.length - most
  return (
    <>
      {items.slice(0, most).map((item, place) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: items of a shown value keep their places.
        <span key={place} className="item">
          <Value value={item} />
        </span>
      ))}
      {others > 0 && <span className="item">{fill(texts.common.others, { count: others })}</span>}
    </>
  )
}

export function RecordName({ record }: { readonly record: Resource }) {
  return <>{useRecordTitle(record)}</>
}

/** The name of the record behind `Type/id`. */
export function RecordTitle({ reference }: { readonly reference: string }) {
  return <>{useTitle(reference)}</>
}

interface RecordLinkProps {
  readonly reference: string
  /** The name of the record; looked up when absent. */
  readonly display?: unknown
}

function RecordLink({ reference, display }: RecordLinkProps) {
  const isNamed = typeof display === 'string' && display !== ''
  return (
    <Link href={`/resources/${reference}`}>
      {isNamed ? display : <RecordTitle reference={reference} />}
    </Link>
  )
}

interface Quantity {
  readonly value: unknown
  readonly comparator?: string
  readonly unit?: string
  readonly code?: string
}

function isQuantity(value: object): value is Quantity {
  return 'value' in value && ['comparator', 'unit', 'code'].some((name) => name in value)
}

const ABSENT = 'http://hl7.org/fhir/StructureDefinition/data-absent-reason'

/** Returns why a primitive element with only extensions has no value; undefined for any other element. */
export function absentReason(parent: object, name: string): string | undefined {
  const extensions = readElement(parent, `_${name}`)
  if (!isObject(extensions) || readElement(parent, name) !== undefined) return undefined
  const all: readonly unknown[] = Array.isArray(extensions.extension) ? extensions.extension : []
  const reason = all.filter(isObject).find(({ url }) => url === ABSENT)?.valueCode
  return fill(texts.record.noValue, {
    reason: typeof reason === 'string' ? reason : texts.record.noReason,
  })
}

interface RoundedProps {
  readonly value: unknown
  readonly unit?: string
}

const small = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 4 })
const large = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 })

/** The tooltip has all digits. */
function Rounded({ value, unit = '' }: RoundedProps) {
  const exact = String(value)
  const format = Math.abs(Number(exact)) < 100 ? small : large
  const short = `${format.format(Number(exact))}${unit}`
  return short === `${exact}${unit}` ? short : <span title={exact}>{short}</span>
}

function formatComplexValue(value: Record<string, unknown>): string {
  if ('family' in value || 'given' in value) return formatHumanName(value)
  if ('coding' in value || ('text' in value && !('status' in value))) {
    return formatCodeableConcept(value)
  }
  if ('line' in value || 'city' in value) return formatAddress(value)
  if ('start' in value || 'end' in value) return formatPeriod(value)
  if ('low' in value || 'high' in value) return formatRange(value)
  const { display, value: own, title, code, text, contentType } = value
  const first = [display, own, title, code, text, contentType]
    .flat()
    .find((one) => one !== undefined)
  if (first === undefined) return JSON.stringify(value).slice(0, 80)
  // Such as the code of a component.
  return isObject(first) && !(first instanceof Digits) ? formatComplexValue(first) : String(first)
}

const COLUMNS: Readonly<Record<string, readonly string[]>> = {
  Patient: ['birthDate', 'gender', 'telecom', 'address'],
  Practitioner: ['telecom', 'identifier'],
  Observation: ['subject', 'value[x]', 'effective[x]'],
  Condition: ['subject', 'clinicalStatus', 'onset[x]'],
  MedicationRequest: ['subject', 'status', 'authoredOn'],
  Procedure: ['subject', 'status', 'performed[x]'],
  Immunization: ['patient', 'status', 'occurrence[x]'],
  DiagnosticReport: ['subject', 'status', 'effective[x]'],
  Encounter: ['status', 'class', 'subject', 'period'],
  Bot: ['description'],
  Subscription: ['criteria', 'status'],
  AuditEvent: ['recorded', 'subtype', 'outcome', 'agent'],
}

export function usualColumns(type: string): readonly string[] {
  return COLUMNS[type] ?? ['status', 'subject']
}
