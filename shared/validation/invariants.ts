/** Invariants of severity error. https://hl7.org/fhir/R4/conformance-rules.html */
import { HttpError } from '../core/errors.ts'
import type { Constraint } from '../fhir/definitions-data.ts'
import { isObject } from '../fhir/resource.ts'
import { compilePlain } from '../fhirpath/closures.ts'
import { compileTenant } from '../fhirpath/custom.ts'
import type { Truth, Variables } from '../fhirpath/members.ts'
import { compile, holds } from '../fhirpath/path.ts'
import { NOT_PLAIN } from '../fhirpath/values.ts'

export interface Invariant {
  readonly key: string
  readonly expression: string
  readonly text: string
  readonly holds: (focus: unknown, variables: Variables) => boolean
}

/** ele-1 is part of the walk, dom-3 is rarely met, the store checks axp-3, the others are wrong. */
const SKIPPED = new Set(['ele-1', 'dom-3', 'org-1', 'sdf-19', 'axp-3'])

/** Compiles the invariants on elements of `type` (`Patient.contact`, `Period`). */
export function compileInvariants(
  constraints: readonly Constraint[] | undefined,
  type: string,
): readonly Invariant[] {
  return (constraints ?? [])
    .filter(({ key, severity }) => severity === 'error' && !SKIPPED.has(key))
    .map((constraint) => {
      const isTrue = REWRITTEN.get(constraint.key) ?? evaluator(constraint.expression, type, false)
      return createInvariant(constraint, constraint.key === 'tim-2' ? exceptBots(isTrue) : isTrue)
    })
}

/** Written in code: the engine takes quadratic time. */
const REWRITTEN: ReadonlyMap<string, Invariant['holds']> = new Map([['sdf-8a', hasOneRoot]])

/** The first element of a differential is the type, all others lie below it. */
function hasOneRoot(focus: unknown, { resource }: Variables): boolean {
  const elements: unknown = isObject(focus) ? focus.element : undefined
  if (!Array.isArray(elements) || !isObject(resource)) return true
  const [first, ...others] = elements.map((element) => String(isObject(element) && element.path))
  if (first === undefined) return true
  const isOfType = resource.kind === 'logical' || first.startsWith(String(resource.type))
  const root = `${first.split('.', 1)[0]}.`
  return isOfType && others.every((path) => path.startsWith(root))
}

/** The period of a Bot's `cronTiming` counts runs per day and has no unit. */
function exceptBots(isTrue: Invariant['holds']): Invariant['holds'] {
  return (focus, variables) => {
    const { resource } = variables
    return (isObject(resource) && resource.resourceType === 'Bot') || isTrue(focus, variables)
  }
}

/** Compiles an invariant of a profile, which is tenant input: `holds` throws 400 for an invalid expression. */
export function tenantInvariant(constraint: Constraint, type: string): Invariant {
  return createInvariant(constraint, evaluator(constraint.expression, type, true))
}

function createInvariant(
  { key, human, expression }: Pick<Constraint, 'key' | 'human' | 'expression'>,
  isTrue: Invariant['holds'],
): Invariant {
  return { key, expression, text: `Constraint ${key} not met: ${human}`, holds: isTrue }
}

function evaluator(expression: string, type: string, isTenants: boolean): Invariant['holds'] {
  let plain: Truth | undefined
  let isTried = false
  // The engine copies every variable, including the resource, per evaluation.
  const isNaming = /%|resolve\(/.test(expression)
  return (focus, variables) => {
    if (!isTried) {
      isTried = true
      plain = plainly(() => compilePlain(expression, type, isTenants))
    }
    if (plain !== undefined) {
      const isTrue = plainly(() => plain?.(focus, variables) === true)
      if (isTrue !== undefined) return isTrue
    }
    const used = isNaming ? { ...variables } : {}
    return isTenants
      ? holds(compileTenant(expression, type), focus, used)
      : holdsOrFails(expression, type, focus, used)
  }
}

/** An expression that the engine cannot evaluate is not an error of the data. */
function holdsOrFails(
  expression: string,
  type: string,
  focus: unknown,
  variables: Readonly<Record<string, unknown>>,
): boolean {
  try {
    return holds(compile(expression, type), focus, variables)
  } catch (error) {
    if (error instanceof HttpError) return true
    throw error
  }
}

function plainly<T>(run: () => T): T | undefined {
  try {
    return run()
  } catch (error) {
    if (error === NOT_PLAIN) return undefined
    throw error
  }
}

export const UNIVERSAL: ReadonlyMap<string, readonly Invariant[]> = new Map([
  [
    'Extension',
    [
      createInvariant(
        {
          key: 'ext-1',
          human: 'Must have either extensions or value[x], not both',
          expression: 'extension.exists() != value.exists()',
        },
        hasExtensionOrValue,
      ),
    ],
  ],
  [
    'Reference',
    [
      createInvariant(
        {
          key: 'ref-1',
          human: 'SHALL have a contained resource if a local reference is provided',
          expression:
            "reference.startsWith('#').not() or (reference.substring(1).trace('url') in %rootResource.contained.id.trace('ids'))",
        },
        isContainedReference,
      ),
    ],
  ],
  [
    'Narrative.div',
    [
      createInvariant(
        {
          key: 'txt-1',
          human:
            'The narrative SHALL contain only the basic html formatting elements and attributes described in chapters 7-11 (except section 4 of chapter 9) and 15 of the HTML 4.0 standard, <a> elements (either name or href), images and internally contained style attributes',
          expression: 'htmlChecks()',
        },
        hasOnlyBasicHtml,
      ),
      createInvariant(
        {
          key: 'txt-2',
          human: 'The narrative SHALL have some non-whitespace content',
          expression: 'htmlChecks()',
        },
        hasText,
      ),
    ],
  ],
])

function hasExtensionOrValue(focus: unknown): boolean {
  let [hasExtension, hasValue] = [false, false]
  for (const key in focus as object) {
    if (key === 'extension') hasExtension = true
    else if (key.startsWith('value') || key.startsWith('_value')) hasValue = true
  }
  return hasExtension !== hasValue
}

const containedIds = new WeakMap<object, ReadonlySet<unknown>>()

function isContainedReference(focus: unknown, { rootResource }: Variables): boolean {
  const reference = isObject(focus) ? focus.reference : undefined
  // A lone # is the container.
  if (typeof reference !== 'string' || !reference.startsWith('#') || reference === '#') return true
  if (!isObject(rootResource)) return true
  let ids = containedIds.get(rootResource)
  if (ids === undefined) {
    const { contained } = rootResource
    ids = new Set(Array.isArray(contained) ? contained.map((item) => item?.id) : [])
    containedIds.set(rootResource, ids)
  }
  return ids.has(reference.slice(1))
}

// Narrative XHTML, invariants txt-1 and txt-2: https://hl7.org/fhir/R4/narrative.html

const ELEMENTS = new Set(
  (
    'a abbr acronym b big blockquote br caption cite code col colgroup dd dfn div dl dt em h1 h2 h3 h4 ' +
    'h5 h6 hr i img li ol p pre q samp small span strong sub sup table tbody td tfoot th thead tr tt ul var'
  ).split(' '),
)

const ATTRIBUTES = new Set(
  (
    'abbr accesskey align alt axis bgcolor border cellhalign cellpadding cellspacing cellvalign char ' +
    'charoff charset cite class colspan compact coords dir frame headers height href hreflang hspace id ' +
    'lang longdesc name nowrap rel rev rowspan rules scope shape span src start style summary tabindex ' +
    'title type valign value vspace width xmlns xml:lang xml:space'
  ).split(' '),
)

/** One tag from its `<`: name, attributes, end. Sticky: each match starts at the end of the previous one. */
const TAG = /<\/?([A-Za-z][\w:.-]*)|([A-Za-z_][\w:.-]*)\s*=\s*("[^"<]*"|'[^'<]*')|\s+|\/?>/y

/** Allows only the tags and attributes of a narrative: no scripts, forms or events. */
export function hasOnlyBasicHtml(div: unknown): boolean {
  if (typeof div !== 'string' || !/^\s*<div[\s>/]/.test(div)) return false
  for (let at = div.indexOf('<'); at !== -1; at = div.indexOf('<', at)) {
    const end = isDeclaration(div, at) ? endOfDeclaration(div, at) : endOfTag(div, at)
    if (end === -1) return false
    at = end
  }
  return true
}

function isDeclaration(div: string, at: number): boolean {
  return div[at + 1] === '!' || div[at + 1] === '?'
}

function endOfDeclaration(div: string, at: number): number {
  const [start, close] = div.startsWith('<!--', at) ? [at + 4, '-->'] : [at, '>']
  const end = div.indexOf(close, start)
  return end === -1 ? -1 : end + close.length
}

/** Returns -1 for a malformed or forbidden tag. */
function endOfTag(div: string, start: number): number {
  for (let at = start; ; at = TAG.lastIndex) {
    TAG.lastIndex = at
    const part = TAG.exec(div)
    if (part === null) return -1
    const [text, element, attribute] = part
    if (text.endsWith('>') && element === undefined && attribute === undefined) return TAG.lastIndex
    if (element !== undefined && (at !== start || !ELEMENTS.has(element))) return -1
    if (attribute !== undefined && !isAllowed(attribute, text)) return -1
  }
}

function isAllowed(attribute: string, text: string): boolean {
  if (!ATTRIBUTES.has(attribute) && !attribute.startsWith('xmlns:')) return false
  return !/^(?:href|src)\s*=\s*["']\s*(?:javascript|vbscript):/i.test(text)
}

export function hasText(div: unknown): boolean {
  if (typeof div !== 'string') return false
  for (const piece of div.split('<')) {
    const text = piece.slice(piece.indexOf('>') + 1)
    if (/[^\s]/.test(text) || piece.startsWith('img')) return true
  }
  return false
}
