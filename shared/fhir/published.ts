/** Definitions of FHIR and of the platform, as resources. https://hl7.org/fhir/R4/structuredefinition.html */
import { createHash } from 'node:crypto'
import { uuidFromBytes } from '../core/uuid.ts'
import {
  isPlatformType,
  publishedProfileUrls,
  publishedSnapshot,
  publishedSnapshots,
  resourceTypes,
  searchParameters,
  typeDefinition,
  typeNames,
} from './definitions.ts'
import type { ElementDefinition, ElementType, SearchParameter } from './definitions-data.ts'
import { openOnce } from './definitions-data.ts'
import { withoutEmpty } from './json.ts'
import {
  canonicalUrl,
  canonicalVersion,
  PLATFORM_URL,
  type Resource,
  STANDARD_URL,
} from './resource.ts'
import { coreCodeSystem, coreConceptMap, coreUrls, coreValueSet } from './terminology.ts'

const FHIR_VERSION = '4.0.1'

export function publishedType(name: string): Resource | undefined {
  const definition = typeDefinition(name)
  if (definition === undefined) return undefined
  const { kind, abstract = false, base, elements } = definition
  return {
    resourceType: 'StructureDefinition',
    ...publishedIdentity(typeCanonical(name)),
    url: typeCanonical(name),
    name,
    status: 'active',
    kind,
    abstract,
    type: name,
    ...(base === undefined ? {} : { baseDefinition: typeCanonical(base) }),
    derivation: 'specialization',
    snapshot: {
      element: [
        cardinality(name, 0, '*'),
        ...elements.map((element) => toElementDefinition(name, element)),
      ],
    },
  }
}

/** Finds a type or a profile by canonical. */
export function publishedStructure(canonical: string): Resource | undefined {
  const [url, version] = [canonicalUrl(canonical), canonicalVersion(canonical)]
  const profile = publishedSnapshot(url)
  if (profile !== undefined) {
    const isOther = version !== undefined && version !== profile.version
    return isOther
      ? undefined
      : { resourceType: 'StructureDefinition', ...publishedIdentity(url), ...profile }
  }
  if (version !== undefined && version !== FHIR_VERSION) return undefined
  const name = url.slice(url.lastIndexOf('/') + 1)
  return url === typeCanonical(name) ? publishedType(name) : undefined
}

const TERMINOLOGY: ReadonlyMap<string, typeof coreCodeSystem | typeof coreConceptMap> = new Map([
  ['CodeSystem', coreCodeSystem],
  ['ConceptMap', coreConceptMap],
  ['ValueSet', coreValueSet],
])

export function publishedDefinition(type: string, canonical: string): Resource | undefined {
  if (type === 'StructureDefinition') return publishedStructure(canonical)
  if (type === 'SearchParameter') return parameters().get(canonical)
  const found = TERMINOLOGY.get(type)?.(canonicalUrl(canonical))
  const version = canonicalVersion(canonical)
  if (found === undefined || (version ?? found.version) !== found.version) return undefined
  // A code system without packaged concepts has an empty list.
  return withoutEmpty({
    resourceType: type,
    status: 'active',
    ...found,
    ...publishedIdentity(found.url),
  })
}

/** Publication date of FHIR 4.0.1. */
const META = { versionId: '1', lastUpdated: '2019-11-01T00:00:00.000Z' } as const
const URL_NAMESPACE = Buffer.from('6ba7b8119dad11d180b400c04fd430c8', 'hex')

/** The id is the version 5 UUID (RFC 4122) of the URL: equal on every server. */
export function publishedIdentity(url: string): {
  readonly id: string
  readonly meta: typeof META
} {
  const bytes = createHash('sha1').update(URL_NAMESPACE).update(url).digest().subarray(0, 16)
  bytes.writeUInt8((bytes.readUInt8(6) & 0x0f) | 0x50, 6)
  bytes.writeUInt8((bytes.readUInt8(8) & 0x3f) | 0x80, 8)
  return { id: uuidFromBytes(bytes), meta: META }
}

export function publishedById(type: string, id: string): Resource | undefined {
  if (id[14] !== '5' || !TYPES.has(type)) return undefined
  const url = urls().get(type)?.get(id)
  return url === undefined ? undefined : publishedDefinition(type, url)
}

const TYPES: ReadonlySet<string> = new Set([
  ...TERMINOLOGY.keys(),
  'SearchParameter',
  'StructureDefinition',
])

/** Type → id → url. */
const urls = openOnce(() => {
  const all: readonly (readonly [string, Iterable<string>])[] = [
    ['StructureDefinition', [...typeNames().map(typeCanonical), ...publishedSnapshots()]],
    ['SearchParameter', parameters().keys()],
    ...coreUrls(),
  ]
  return new Map(
    all.map(([type, found]) => {
      return [type, new Map([...found].map((url) => [publishedIdentity(url).id, url]))] as const
    }),
  )
})

/** Finds by `_id` or `url`, a SearchParameter also by `base` or `code`, a StructureDefinition by `name` or `type`. */
export function publishedBy(type: string, code: string, value: string): readonly Resource[] {
  if (code === '_id' || code === 'url') {
    const found = (code === 'url' ? publishedDefinition : publishedById)(type, value)
    return found === undefined ? [] : [found]
  }
  if (type === 'SearchParameter') {
    return [...parameters().values()].filter((one) => [one[code]].flat().includes(value))
  }
  if (type !== 'StructureDefinition') return []
  const profiles = code === 'type' ? publishedProfileUrls(value).map(publishedStructure) : []
  return [publishedType(value), ...profiles].filter((found) => found !== undefined)
}

export function publishedParameters(type: string): readonly Resource[] {
  return [...searchParameters(type).values()].map((one) => parameterResource(one, [type], [one]))
}

function parameterResource(
  { code, type, url }: SearchParameter,
  base: readonly string[],
  alike: readonly SearchParameter[],
): Resource {
  const expressions = new Set(alike.flatMap(({ expression = [] }) => expression))
  const targets = new Set(alike.flatMap(({ targets = [] }) => targets))
  return {
    resourceType: 'SearchParameter',
    ...publishedIdentity(url),
    url,
    name: code,
    status: 'active',
    code,
    base,
    type,
    ...(expressions.size === 0 ? {} : { expression: [...expressions].join(' | ') }),
    ...(targets.size === 0 ? {} : { target: [...targets] }),
  }
}

/** SearchParameters by URL, each with all its types. */
const parameters = openOnce(() => {
  const all = resourceTypes.flatMap((type) =>
    [...searchParameters(type).values()].map((parameter) => ({ type, parameter })),
  )
  const found = new Map<string, Resource>()
  for (const [url, uses] of Map.groupBy(all, ({ parameter }) => parameter.url)) {
    const alike = uses.map(({ parameter }) => parameter)
    const [first] = alike
    if (first === undefined) continue
    const [root = ''] = (first.expression ?? 'Resource').split('.')
    const base = ROOTS.has(root) ? [root] : uses.map(({ type }) => type)
    found.set(url, parameterResource(first, base, alike))
  }
  return found
})

/** Parameters of these types are listed once, not per type. */
const ROOTS: ReadonlySet<string> = new Set(['Resource', 'DomainResource'])

export function typeCanonical(type: string): string {
  return (isPlatformType(type) ? PLATFORM_URL : STANDARD_URL) + type
}

const CORE_VERSION = '4.0.1'

/** True for the canonical of the definition that every resource of the type must match. */
export function isTypeCanonical(canonical: string, type: string): boolean {
  const [url, version = CORE_VERSION] = canonical.split('|')
  return url === typeCanonical(type) && version === CORE_VERSION
}

function toElementDefinition(type: string, element: ElementDefinition): object {
  const { path, choice, min = 0, max = '1', types, content, binding } = element
  return {
    ...cardinality(`${type}.${path}${choice ? '[x]' : ''}`, min, max),
    ...(content === undefined
      ? { type: types.map(toElementType) }
      : { contentReference: `#${content}` }),
    ...(binding === undefined ? {} : { binding: { strength: 'required', valueSet: binding } }),
  }
}

function cardinality(path: string, min: number, max: string): object {
  return { id: path, path, min, max, base: { path, min, max } }
}

function toElementType({ code, targets }: ElementType): object {
  return targets === undefined ? { code } : { code, targetProfile: targets.map(typeCanonical) }
}
