/** Parses `_filter`. `and` and `or` have equal precedence. https://hl7.org/fhir/R4/search_filter.html */
import { badRequest, notSupported, tooCostly } from '../../core/errors.ts'
import { resourceTypes, searchParameter } from '../../fhir/definitions.ts'
import type { OwnParameters, SearchParamType } from '../../fhir/definitions-data.ts'
import {
  type Condition,
  type Criterion,
  isCondition,
  type Join,
  MAX_LINKS,
  type Refusal,
} from './search-request.ts'

/** A text of megabytes would overflow the stack of the pattern. */
const MAX_CHARACTERS = 100_000
const MAX_DEPTH = 16
const MAX_COMPARISONS = 64

type ReadComparison = (name: string, value: string) => Criterion | Refusal | undefined

/**
 * Refuses the whole filter when one comparison is refused: dropping it would change the meaning of the rest. Errors:
 * 400 for a syntax error, an unknown operator, too many comparisons.
 */
export function readFilter(
  type: string,
  text: string,
  own: OwnParameters | undefined,
  read: ReadComparison,
): Criterion | Refusal {
  if (text.length > MAX_CHARACTERS) {
    throw tooCostly(`_filter may have ${MAX_CHARACTERS} characters`, '_filter')
  }
  const words = tokenize(text)
  let place = 0
  let comparisons = 0

  function expression(depth: number): Criterion | Refusal {
    if (depth > MAX_DEPTH) throw tooCostly(`_filter may be ${MAX_DEPTH} levels deep`, '_filter')
    let left = operand(depth)
    for (;;) {
      const word = words[place]
      if (!isPlain(word, 'and') && !isPlain(word, 'or')) return left
      place += 1
      left = grouped(word.text === 'and' ? 'and' : 'or', left, operand(depth))
    }
  }

  function operand(depth: number): Criterion | Refusal {
    const isNegated = isPlain(words[place], 'not') && isPlain(words[place + 1], '(')
    if (isNegated) place += 1
    if (!isPlain(words[place], '(')) return comparison()
    place += 1
    const inner = expression(depth + 1)
    if (!isPlain(words[place], ')')) throw invalid(text)
    place += 1
    return isNegated && !('reason' in inner) ? { kind: 'not', criterion: inner } : inner
  }

  function comparison(): Criterion | Refusal {
    const [path, operator, value] = words.slice(place, place + 3)
    if (path === undefined || operator === undefined || value === undefined) throw invalid(text)
    if ([path, operator, value].some((word) => isPlain(word, '(') || isPlain(word, ')'))) {
      throw invalid(text)
    }
    if (path.text.includes('[')) {
      throw notSupported('Filters inside a path are not supported', '_filter')
    }
    place += 3
    comparisons += 1
    if (comparisons > MAX_COMPARISONS) {
      throw tooCostly(`_filter may have ${MAX_COMPARISONS} comparisons`, '_filter')
    }
    const kind = endType(type, path.text, own)
    return compare(kind, path.text, { operator: operator.text, value: value.text, read })
  }

  const found = expression(1)
  if (place < words.length) throw invalid(text)
  return found
}

function grouped(
  kind: 'and' | 'or',
  left: Criterion | Refusal,
  right: Criterion | Refusal,
): Criterion | Refusal {
  if ('reason' in left) return left
  return 'reason' in right ? right : { kind, criteria: [left, right] }
}

interface Word {
  readonly text: string
  readonly quoted: boolean
}

const WORD = /\s*(?:([()])|"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s()"']+))/gsy

function tokenize(text: string): readonly Word[] {
  const trimmed = text.trimEnd()
  const words: Word[] = []
  let end = 0
  for (const match of trimmed.matchAll(WORD)) {
    const [whole, bracket, double, single, plain] = match
    const inner = double ?? single
    end = match.index + whole.length
    if (inner === undefined) words.push({ text: bracket ?? plain ?? '', quoted: false })
    else words.push({ text: inner.replace(/\\(.)/gs, '$1'), quoted: true })
  }
  if (end < trimmed.length) throw invalid(text)
  return words
}

function isPlain(word: Word | undefined, text: string): word is Word {
  return word !== undefined && !word.quoted && word.text === text
}

function invalid(text: string): Error {
  return badRequest(`Invalid _filter: ${text.slice(0, 200)}`, '_filter')
}

const PREFIXES = ['eq', 'ne', 'gt', 'lt', 'ge', 'le', 'ap', 'sa', 'eb']
const OPERATORS = [
  ...PREFIXES,
  'co',
  'sw',
  'ew',
  'pr',
  'po',
  'ss',
  'sb',
  'in',
  'ni',
  're',
  'identifier',
]

/** Operators of each parameter type, as equivalent modifiers; empty for the parameter's default comparison. */
const FILTER_OPERATORS: Readonly<
  Partial<Record<SearchParamType, Readonly<Record<string, string>>>>
> = {
  string: { eq: ':exact', ne: ':exact', co: ':contains', sw: '', ew: ':contains' },
  token: { eq: '', ne: '', co: ':contains', in: ':in', ni: ':not-in', ss: ':below', sb: ':above' },
  reference: { eq: '', ne: '', re: '', identifier: ':identifier' },
  uri: { eq: '', ne: '', co: ':contains', sw: ':below' },
  date: { po: '' },
}

interface Comparison {
  readonly operator: string
  readonly value: string
  readonly read: ReadComparison
}

function compare(
  kind: SearchParamType | undefined,
  path: string,
  { operator, value, read }: Comparison,
): Criterion | Refusal {
  if (!OPERATORS.includes(operator)) throw badRequest(`Invalid operator: ${operator}`, '_filter')
  // A bar separates system and code as in parameters; a comma is literal.
  const text = value.replace(/[\\,$]/g, '\\$&')
  if (operator === 'pr') {
    if (value !== 'true' && value !== 'false') throw badRequest('pr takes true or false', '_filter')
    return required(read(`${path}:missing`, value === 'true' ? 'false' : 'true'), path)
  }
  const isOrdered = kind === 'date' || kind === 'number' || kind === 'quantity'
  if (isOrdered && PREFIXES.includes(operator)) {
    return required(read(path, `${operator}${text}`), path)
  }
  const modifier = kind === undefined ? '' : FILTER_OPERATORS[kind]?.[operator]
  if (modifier === undefined) {
    throw badRequest(`Invalid operator: ${operator} for ${path}`, '_filter')
  }
  const found = required(read(`${path}${modifier}`, text), path)
  if ('reason' in found) return found
  if (kind === undefined && operator !== 'eq') {
    throw badRequest(`Invalid operator: ${operator} for ${path}`, '_filter')
  }
  if (operator === 'ne') return mapEnds(found, (criterion) => ({ kind: 'not', criterion }))
  if (operator !== 'ew' && operator !== 'po') return found
  return mapEnds(found, (leaf) => {
    if (isCondition(leaf)) {
      if (leaf.type === 'string' && operator === 'ew') return { ...leaf, modifier: 'ew' }
      if (leaf.type === 'date' && operator === 'po') return { ...leaf, modifier: 'po' }
    }
    throw badRequest(`Invalid operator: ${operator} for ${path}`, '_filter')
  })
}

function required(found: Criterion | Refusal | undefined, path: string): Criterion | Refusal {
  if (found === undefined) throw badRequest(`Empty value for ${path}`, '_filter')
  return found
}

/**
 * Returns the type of the parameter that is compared; undefined for an unknown one, for `_type`, and for a chain that is
 * too long: each link may lead to every type, and reading the path rejects it.
 */
function endType(
  type: string,
  path: string,
  own: OwnParameters | undefined,
  links = 0,
): SearchParamType | undefined {
  if (links > MAX_LINKS) return undefined
  if (path === '_list') return 'reference'
  const [, source, end] = /^_has:([A-Za-z]+):[^:.]+:(.+)$/s.exec(path) ?? []
  if (source !== undefined && end !== undefined) return endType(source, end, own, links + 1)
  const [, code = '', target, rest] = /^([^:.]+)(?::([A-Za-z]+))?(?:\.(.+))?$/s.exec(path) ?? []
  const parameter = searchParameter(type, code, own)
  if (rest === undefined || parameter === undefined) return parameter?.type
  if (parameter.type !== 'reference') return undefined
  const targets = target === undefined ? (parameter.targets ?? resourceTypes) : [target]
  for (const end of targets) {
    const found = endType(end, rest, own, links + 1)
    if (found !== undefined) return found
  }
  return undefined
}

/** Changes the comparison at the ends of chains and `_has`: some resource there matches, as with modifiers. */
function mapEnds(criterion: Criterion, change: (leaf: Condition | Join) => Criterion): Criterion {
  if (!('kind' in criterion)) return change(criterion)
  if (criterion.kind !== 'chain' && criterion.kind !== 'has') return criterion
  // The List itself is compared: `ne` finds the resources that are not its members.
  if (criterion.isList) return change(criterion)
  const ends = criterion.ends.map((end) => ({
    ...end,
    criterion: mapEnds(end.criterion, change),
  }))
  return { ...criterion, ends }
}
