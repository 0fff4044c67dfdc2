/** Resources as lines of comma-separated values. https://www.rfc-editor.org/rfc/rfc4180 */
import { badRequest } from '../errors.ts'
import { searchParameter } from '../fhir/definitions.ts'
import { isDecimal } from '../fhir/json.ts'
import { isObject, type Resource } from '../fhir/resource.ts'
import { compileExpression, type Leg, type Walk } from '../fhirpath/extract.ts'

/** Text of one cell. */
export type Column = (resource: Resource) => string

/** An element path (`name.family`) or a search parameter (`address-city`). Errors: 400 for neither. */
export function columnOf(type: string, field: string): Column {
  const legs = legsOf(type, field)
  if (legs === undefined) throw badRequest(`Unknown field: ${field.slice(0, 100)}`)
  const walks = legs.map((leg): Walk<string[]> => {
    return leg.bind((value, into) => {
      const text = textOf(value, leg.type)
      if (text !== '') into.push(text)
    })
  })
  return (resource) => {
    const texts: string[] = []
    for (const walk of walks) walk(resource, texts)
    return [...new Set(texts)].join('; ')
  }
}

export function csvLine(cells: readonly string[]): string {
  return `${cells.map(cellOf).join(',')}\r\n`
}

function legsOf(type: string, field: string): readonly Leg[] | undefined {
  const expression = searchParameter(type, field)?.expression
  const path = /^[a-zA-Z]\w*(\.[a-zA-Z]\w*)*$/.test(field) ? `${type}.${field}` : expression
  for (const candidate of [path, expression]) {
    if (candidate === undefined) continue
    try {
      return compileExpression(type, candidate)
    } catch {
      // It is no element of the type; it may be a search parameter.
    }
  }
  return undefined
}

/** A spreadsheet would run what begins with these as a formula. */
const FORMULA = /^[=+\-@\t\r]/

function cellOf(text: string): string {
  const safe = FORMULA.test(text) ? `'${text}` : text
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe
}

/** Writes a value as a person would. */
function textOf(value: unknown, type: string): string {
  if (value === undefined || value === null) return ''
  if (isDecimal(value)) return value.toString()
  if (!isObject(value)) return Array.isArray(value) ? '' : String(value)
  const of = (name: string) => textOf(value[name], '')
  const list = (name: string) => {
    const items = value[name]
    return Array.isArray(items) ? items.map((item) => textOf(item, '')) : []
  }
  const words = (...parts: readonly string[]) => parts.filter((part) => part !== '').join(' ')
  switch (type) {
    case 'HumanName':
      return (
        of('text') || words(...list('prefix'), ...list('given'), of('family'), ...list('suffix'))
      )
    case 'Address': {
      const parts = [...list('line'), of('city'), of('state'), of('postalCode'), of('country')]
      return of('text') || parts.filter((part) => part !== '').join(', ')
    }
    case 'CodeableConcept': {
      const [coding] = Array.isArray(value.coding) ? value.coding : []
      return of('text') || textOf(coding, 'Coding')
    }
    case 'Coding':
      return of('display') || of('code')
    case 'Reference':
      return of('display') || of('reference')
    case 'Identifier':
    case 'ContactPoint':
      return of('value')
    case 'Period':
      return words(of('start'), '–', of('end'))
    case 'Annotation':
      return of('text')
    default:
      if ('value' in value)
        return words(of('comparator'), of('value'), of('unit') || of('currency'))
      return JSON.stringify(value)
  }
}
