/** FHIR resources as plain JSON. https://hl7.org/fhir/R4/json.html */

export interface Reference {
  readonly reference?: string
  readonly type?: string
  readonly display?: string
  readonly identifier?: { readonly system?: string; readonly value?: string }
  readonly extension?: readonly unknown[]
}

export interface Meta {
  readonly versionId?: string
  readonly lastUpdated?: string
  readonly project?: string
  readonly author?: Reference
  readonly onBehalfOf?: Reference
  readonly account?: Reference
  readonly accounts?: readonly Reference[]
  readonly compartment?: readonly Reference[]
  readonly profile?: readonly string[]
  readonly [key: string]: unknown
}

export interface Resource {
  readonly resourceType: string
  readonly id?: string
  readonly meta?: Meta
  readonly [key: string]: unknown
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

export function isResource(value: unknown): value is Resource {
  return isObject(value) && typeof value.resourceType === 'string'
}

export function referenceTo(resource: {
  readonly resourceType: string
  readonly id?: string
}): string {
  return `${resource.resourceType}/${resource.id}`
}

/** Splits a literal relative reference, dropping the version; undefined for anything else. */
export function parseReference(text: string | undefined): { type: string; id: string } | undefined {
  const match = /^([A-Z][A-Za-z]+)\/([A-Za-z0-9\-.]{1,64})(?:\/_history\/[^/]+)?$/.exec(text ?? '')
  if (!match) return undefined
  const [, type = '', id = ''] = match
  return { type, id }
}

const UPPER_CASE_UUID =
  /^([A-Z][A-Za-z]+\/)(?=[0-9a-f-]*[A-F])([0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})(?=$|\/_history\/)/

/** Writes the UUID of a relative reference in lower case, as ids are stored. */
export function normalReference(text: string): string {
  return text.replace(UPPER_CASE_UUID, (_, type: string, id: string) => type + id.toLowerCase())
}

/** Returns a relative reference as it is stored; undefined for other texts. */
export function storedReference(text: string): string | undefined {
  return parseReference(text) && normalReference(text)
}

/** Calls `found` with each literal reference in a value and the FHIRPath of its element. */
export function visitReferences(
  value: unknown,
  path: string,
  found: (text: string, path: string) => void,
): void {
  if (Array.isArray(value)) {
    value.forEach((item, i) => {
      visitReferences(item, `${path}[${i}]`, found)
    })
    return
  }
  if (!isObject(value)) return
  if (typeof value.reference === 'string') found(value.reference, path)
  for (const [name, item] of Object.entries(value)) visitReferences(item, `${path}.${name}`, found)
}

export function referenceIn(value: unknown): string | undefined {
  return isObject(value) && typeof value.reference === 'string' ? value.reference : undefined
}

/** Returns the target of a Reference that has a literal relative one. */
export function targetIn(value: unknown): { type: string; id: string } | undefined {
  return parseReference(referenceIn(value))
}

/** `url` or `url|version`: https://hl7.org/fhir/R4/references.html#canonical */
export function canonicalUrl(canonical: string): string {
  return canonical.split('|', 1)[0] ?? canonical
}

export function canonicalVersion(canonical: string): string | undefined {
  const version = canonical.slice(canonicalUrl(canonical).length + 1)
  return version === '' ? undefined : version
}

const { compare } = new Intl.Collator('en', { numeric: true })

/** Returns the requested version, or the highest. */
export function chosen<T extends object>(items: readonly T[], canonical: string): T | undefined {
  const [url, version] = [canonicalUrl(canonical), canonicalVersion(canonical)]
  const named = (item: object): { readonly url?: unknown; readonly version?: unknown } => item
  const fitting = items.filter((item) => {
    const own = named(item)
    return own.url === url && (version === undefined || own.version === version)
  })
  const versionString = (item: T) => String(named(item).version ?? '')
  return fitting.sort((a, b) => compare(versionString(b), versionString(a)))[0]
}

/** The objects of a list; none for any other value. */
export function toObjects(value: unknown): readonly Readonly<Record<string, unknown>>[] {
  return Array.isArray(value) ? value.filter(isObject) : []
}

export function asArray(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : []
}

export const STANDARD_URL = 'http://hl7.org/fhir/StructureDefinition/'

export const PLATFORM_URL = 'https://medplum.com/fhir/StructureDefinition/'

/** Returns undefined for an empty text, as for other values. */
export function nonEmptyText(value: unknown): string | undefined {
  return typeof value === 'string' && value !== '' ? value : undefined
}
