/** Converts published test cases from FHIR XML to JSON. https://hl7.org/fhir/R4/xml.html */

import { getShape, type Property, type Shape } from '../../shared/validation/shapes.ts'
import type { Resource } from '../fixtures/fhir.ts'

export interface XmlElement {
  readonly name: string
  readonly attributes: Readonly<Record<string, string>>
  readonly children: readonly (XmlElement | string)[]
  readonly source: string
}

const MARKUP =
  /<!--[\s\S]*?-->|<\?[\s\S]*?\?>|<!\[CDATA\[([\s\S]*?)\]\]>|<(\/?)([\w:]+)((?:\s+[\w:]+\s*=\s*(?:"[^"]*"|'[^']*'))*)\s*(\/?)>|[^<]+/g

export function parseXml(file: string): XmlElement {
  const text = file.replaceAll('\r\n', '\n')
  type Open = {
    name: string
    attributes: Record<string, string>
    children: (XmlElement | string)[]
    start: number
  }
  const open: Open[] = [{ name: '', attributes: {}, children: [], start: 0 }]
  for (const match of text.matchAll(MARKUP)) {
    const [found, cdata, slash, name = '', attributes = '', empty] = match
    if (name === '') {
      const content = cdata ?? (found.startsWith('<') ? '' : unescaped(found))
      if (content !== '') open.at(-1)?.children.push(content)
      continue
    }
    if (slash === '')
      open.push({ name, attributes: parseAttributes(attributes), children: [], start: match.index })
    if (slash === '' && empty === '') continue
    const { start, ...element } = open.pop() as Open
    open
      .at(-1)
      ?.children.push({ ...element, source: text.slice(start, match.index + found.length) })
  }
  return elementsIn(open[0] as Open)[0] as XmlElement
}

function parseAttributes(text: string): Record<string, string> {
  const found = text.matchAll(/([\w:]+)\s*=\s*(?:"([^"]*)"|'([^']*)')/g)
  return Object.fromEntries(
    [...found].map(([, name, double, single]) => [name, unescaped(double ?? single ?? '')]),
  )
}

const ENTITIES: Readonly<Record<string, string>> = {
  lt: '<',
  gt: '>',
  amp: '&',
  quot: '"',
  apos: "'",
}

function unescaped(text: string): string {
  return text.replace(/&(#x?)?(\w+);/g, (_found, number: string | undefined, name: string) =>
    number === undefined
      ? (ENTITIES[name] ?? '')
      : String.fromCodePoint(Number.parseInt(name, number === '#x' ? 16 : 10)),
  )
}

export function elementsIn({ children }: Pick<XmlElement, 'children'>): XmlElement[] {
  return children.filter((child) => typeof child !== 'string')
}

export function elementsNamed(parent: XmlElement, name: string): XmlElement[] {
  return elementsIn(parent).filter((child) => child.name === name)
}

export function textIn({ children }: XmlElement): string {
  return children.map((child) => (typeof child === 'string' ? child : textIn(child))).join('')
}

export function resourceFromXml(element: XmlElement): Resource {
  return { resourceType: element.name, ...objectFrom(element, getShape(element.name)) }
}

function objectFrom(element: XmlElement, shape: Shape): Record<string, unknown> {
  const object: Record<string, unknown> = {}
  const { id, url } = element.attributes
  if (id !== undefined) object.id = id
  if (url !== undefined) object.url = url
  for (const child of elementsIn(element)) {
    const property = shape.properties.get(child.name)
    if (property === undefined) throw new Error(`${shape.name} has no ${child.name}`)
    const [value, twin] =
      child.name === 'div'
        ? [child.source.replaceAll('&quot;', '"')]
        : parsePrimitivePair(child, property)
    put(object, property, value, twin)
  }
  return object
}

function parsePrimitivePair(element: XmlElement, { check, shape }: Property): [unknown, unknown?] {
  if (check === undefined) {
    if (shape !== undefined) return [objectFrom(element, shape())]
    return [resourceFromXml(elementsIn(element)[0] as XmlElement)]
  }
  const { value: text, ...rest } = element.attributes
  const twin = objectFrom({ ...element, attributes: rest }, getShape('Element'))
  const hasTwin = Object.keys(twin).length > 0
  return [text === undefined ? undefined : primitiveFrom(text, check), hasTwin ? twin : undefined]
}

/** Converts to the JSON type that the check of the primitive accepts. */
function primitiveFrom(text: string, check: (value: unknown) => string | undefined): unknown {
  const candidates = [text, Number(text), text === 'true']
  return candidates.find((candidate) => check(candidate) === undefined) ?? text
}

function put(
  object: Record<string, unknown>,
  property: Property,
  value: unknown,
  twin: unknown,
): void {
  const { name, isArray } = property
  if (!isArray) {
    if (value !== undefined) object[name] = value
    if (twin !== undefined) object[`_${name}`] = twin
    return
  }
  const values = (object[name] ?? []) as unknown[]
  values.push(value ?? null)
  object[name] = values
  if (twin === undefined) return
  const twins = (object[`_${name}`] ?? []) as unknown[]
  while (twins.length < values.length - 1) twins.push(null)
  object[`_${name}`] = [...twins, twin]
}
