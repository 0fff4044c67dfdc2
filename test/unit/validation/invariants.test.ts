import { readFile } from 'node:fs/promises'
import t from 'tap'
import { resourceTypes, typeDefinition, typeElements } from '../../../shared/fhir/definitions.ts'
import type { Constraint } from '../../../shared/fhir/definitions-data.ts'
import { parseJson } from '../../../shared/fhir/json.ts'
import { isObject, type Resource } from '../../../shared/fhir/resource.ts'
import { compilePlain } from '../../../shared/fhirpath/closures.ts'
import { compile, holds } from '../../../shared/fhirpath/path.ts'
import { NOT_PLAIN } from '../../../shared/fhirpath/values.ts'
import { hasOnlyBasicHtml, hasText } from '../../../shared/validation/invariants.ts'
import { validate } from '../../../shared/validation/validate.ts'
import { r4ExampleTexts } from '../../fixtures/resources.ts'

interface Place {
  readonly constraint: Constraint
  readonly type: string
  readonly node: unknown
  readonly resource: Resource
}

/** Every element of a resource with each of the invariants that its own type puts on it. */
function placesIn(resource: Resource): Place[] {
  const { resourceType } = resource
  const own = (typeDefinition(resourceType)?.constraints ?? []).map((constraint) => {
    return { constraint, type: resourceType, node: resource, resource }
  })
  const below = typeElements(resourceType).flatMap(({ path, types, content, constraints = [] }) => {
    const code = types[0]?.code ?? ''
    const isBackbone = /^(Backbone)?Element$/.test(code)
    const type = content ?? (isBackbone ? `${resourceType}.${path}` : code)
    const nodes = path
      .split('.')
      .reduce<unknown[]>(
        (found, step) => found.flatMap((item) => listChildren(item, step)),
        [resource],
      )
    return constraints.flatMap((constraint) =>
      nodes.map((node) => ({ constraint, type, node, resource })),
    )
  })
  return [...own, ...below].filter(({ constraint }) => constraint.severity === 'error')
}

function listChildren(item: unknown, step: string): unknown[] {
  const value = isObject(item) ? item[step] : undefined
  return value === undefined ? [] : [value].flat()
}

/** The answer of plain code; undefined where it leaves the answer to the engine. */
function plainly({ constraint, type, resource }: Place, node: unknown): boolean | undefined {
  try {
    const variables = { context: node, resource, rootResource: resource }
    return compilePlain(constraint.expression, type, false)(node, variables) === true
  } catch (error) {
    if (error === NOT_PLAIN) return undefined
    throw error
  }
}

function byEngine({ constraint, type, resource }: Place, node: unknown): boolean {
  const variables = { context: node, resource, rootResource: resource }
  return holds(compile(constraint.expression, type), node, variables)
}

function isTypeTestOfNothing({ constraint, type }: Place, node: unknown): boolean {
  return (
    / is /.test(constraint.expression) && compile(constraint.expression, type)(node).length === 0
  )
}

/** The element; with a member removed, alone, doubled, negated or renamed; and with nothing. */
function listVariants(node: unknown): unknown[] {
  if (!isObject(node)) return [node]
  const { resourceType } = node
  const kept = resourceType === undefined ? {} : { resourceType }
  const variants: unknown[] = [node, kept]
  for (const [name, value] of Object.entries(node)) {
    if (name === 'resourceType') continue
    const { [name]: _removed, ...rest } = node
    variants.push(rest, { ...kept, [name]: value })
    if (Array.isArray(value)) variants.push({ ...node, [name]: [...value, ...value] })
    else if (typeof value === 'boolean') variants.push({ ...node, [name]: !value })
    else if (typeof value === 'string') variants.push({ ...node, [name]: 'other' })
  }
  return variants
}

/** Variants of one place that are tried. */
const MOST_VARIANTS = 40

t.test('evaluates invariants alike in plain code and in the FHIRPath engine', async (t) => {
  const seen = new Map<string, { places: number; held: number; broken: number }>()
  for (const text of await r4ExampleTexts()) {
    const resource = parseJson(text) as Resource
    for (const place of placesIn(resource)) {
      const { key } = place.constraint
      const known = seen.get(key) ?? { places: 0, held: 0, broken: 0 }
      seen.set(key, known)
      if (known.places >= 3 && known.broken > 0) continue
      if (++known.places > 5) continue
      for (const node of listVariants(place.node).slice(0, MOST_VARIANTS)) {
        const plain = plainly(place, node)
        if (plain === undefined) continue
        known[plain ? 'held' : 'broken']++
        // An invariant takes nothing as of no type; the engine, which serves all expressions, takes the test as empty.
        if (isTypeTestOfNothing(place, node)) continue
        if (plain !== byEngine(place, node)) {
          t.fail(`${place.type} ${key} on ${JSON.stringify(node)}`)
        }
      }
    }
  }
  const both = [...seen.values()].filter(({ held, broken }) => held > 0 && broken > 0)
  t.ok(both.length > 40, `${both.length} of ${seen.size} invariants both hold and fail`)
})

t.test('evaluates nearly every invariant of the standard in plain code', async (t) => {
  const all = new Set<string>()
  const others = new Set<string>()
  const place = { node: undefined, resource: { resourceType: 'Basic' } }
  for (const name of [...resourceTypes, 'Period', 'Quantity', 'Range', 'Ratio', 'Timing']) {
    const constraints = typeDefinition(name)?.constraints ?? []
    for (const constraint of constraints.filter(({ severity }) => severity === 'error')) {
      all.add(constraint.expression)
      if (plainly({ ...place, constraint, type: name }, {}) === undefined) {
        others.add(constraint.key)
      }
    }
  }
  t.ok(all.size > 60, `${all.size} invariants`)
  t.ok(others.size < 10, [...others].join(' '))
})

const html: readonly [div: string, isBasic: boolean, hasText: boolean][] = [
  ['<div xmlns="http://www.w3.org/1999/xhtml">x</div>', true, true],
  ['<div>\n <p title="a > b">x<br/>y</p> <!-- <script> --> </div>', true, true],
  ['<div><img src="#a" alt="x"/></div>', true, true],
  ['<div> <p> </p> </div>', true, false],
  ['<div>x<script>y</script></div>', false, true],
  ['<div><a href="javascript:x">y</a></div>', false, true],
  ['<div><p onclick="x">y</p></div>', false, true],
  ['<div><form>x</form></div>', false, true],
  ['<div>a < b</div>', false, true],
  ['<div>x', true, true],
  ['<p>x</p>', false, true],
  ['', false, false],
]
for (const [div, isBasic, text] of html) {
  t.test(
    `the narrative ${JSON.stringify(div)} is ${isBasic ? '' : 'not '}basic HTML`,
    async (t) => {
      t.equal(hasOnlyBasicHtml(div), isBasic)
      t.equal(hasText(div), text)
    },
  )
}

t.test('parses a narrative of brackets in linear time', async (t) => {
  t.equal(hasOnlyBasicHtml(`<div>${'<b '.repeat(200_000)}`), false)
  t.equal(hasText('<'.repeat(500_000)), false)
})

t.test('skips invariants known to be wrong', async (t) => {
  t.same(validate({ resourceType: 'Organization', active: true }, { strict: true }), [])
})

const typeTests: readonly [member: object, isMet: boolean][] = [
  [{ operator: 'exists', answerBoolean: true }, true],
  [{ operator: 'exists', answerBoolean: false }, true],
  [{ operator: 'exists', answerString: 'true' }, false],
  [{ operator: 'exists', answerInteger: 1 }, false],
  [{ operator: '=', answerString: 'yes' }, true],
]
for (const [member, isMet] of typeTests) {
  t.test(`que-7 ${isMet ? 'holds' : 'fails'} for ${JSON.stringify(member)}`, async (t) => {
    const item = [
      { linkId: '1', type: 'boolean' },
      { linkId: '2', type: 'string', enableWhen: [{ question: '1', ...member }] },
    ]
    const issues = validate(
      { resourceType: 'Questionnaire', status: 'draft', item },
      { strict: true },
    )
    t.same(
      issues.map(({ details }) => details.text.slice(0, 16)),
      isMet ? [] : ['Constraint que-7'],
    )
  })
}

const systemTypes: readonly [expression: string, isMet: boolean][] = [
  ['value is Boolean', false],
  ['value is boolean', false],
  ['value is String', true],
  ['value is string', true],
  ['value is code', true],
  ['value is uri', false],
  ['value.is(String)', true],
  ['(value is Integer).not()', true],
  ['url is String', true],
]
for (const [expression, isMet] of systemTypes) {
  t.test(`the invariant ${expression} ${isMet ? 'holds' : 'fails'} for a code`, async (t) => {
    const focus = { url: 'http://example.org/a', valueCode: 'a' }
    const variables = { context: focus, resource: focus, rootResource: focus }
    t.equal(compilePlain(expression, 'Extension', true)(focus, variables), isMet)
  })
}

t.test('requires a unit for a period, except on a Bot', async (t) => {
  const timing = { repeat: { period: 30, dayOfWeek: ['mon'] } }
  t.same(validate({ resourceType: 'Bot', cronTiming: timing }, { strict: true }), [])
  const other = {
    resourceType: 'ServiceRequest',
    status: 'draft',
    intent: 'order',
    subject: { reference: 'Patient/1' },
    occurrenceTiming: timing,
  }
  t.match(validate(other, { strict: true }), [{ details: { text: /tim-2/ } }])
})

t.test('checks distinctness at every depth and size', async (t) => {
  const texts = (resource: Resource) =>
    validate(resource, { strict: true }).map(({ details }) => details.text.slice(0, 16))
  const codeSystem = (...concept: object[]): Resource => {
    return { resourceType: 'CodeSystem', status: 'draft', content: 'complete', concept }
  }
  const many = Array.from({ length: 30_000 }, (_, i) => ({ code: `c${i}`, display: 'x' }))
  t.same(texts(codeSystem(...many)), [])
  t.same(texts(codeSystem(...many, { code: 'c7' })), ['Constraint csd-1'])
  t.same(texts(codeSystem({ code: 'a', concept: [{ code: 'a' }] })), ['Constraint csd-1'])
  const group = { linkId: '1', type: 'group', item: [{ linkId: '1', type: 'string' }] }
  const questions: Resource = { resourceType: 'Questionnaire', status: 'draft', item: [group] }
  t.same(texts(questions), ['Constraint que-2'])
})

t.test('compares codings of a component in linear time', async (t) => {
  const coding = Array.from({ length: 20_000 }, (_, i) => ({ system: 's', code: `c${i}` }))
  const observation = (...inner: object[]): Resource => ({
    resourceType: 'Observation',
    status: 'final',
    code: { coding },
    valueString: 'x',
    component: [{ code: { coding: inner } }],
  })
  const others = coding.map(({ code, system }) => ({ code: `${code}x`, system }))
  t.same(validate(observation(...others), { strict: true }), [])
  const same = [...others, { code: 'c19999', system: 's' }]
  t.match(validate(observation(...same), { strict: true }), [{ code: 'invariant' }])
})

/** A template whose object `$` is filled; and a key with a failing and a passing value, or why there are none. */
type Line =
  | readonly [place: string, template: object]
  | readonly [key: string, place: string, why: string]
  | readonly [key: string, place: string, fails: object, holds: object]

const dataTypes =
  'Age Attachment ContactPoint Count DataRequirement Distance Duration ElementDefinition Expression Period Quantity Range Ratio Timing TriggerDefinition'

/** Every constraint of severity error as key and expression, with the types that carry it. */
function publishedInvariants(): ReadonlyMap<string, Set<string>> {
  const all = new Map<string, Set<string>>()
  for (const type of [...resourceTypes, ...dataTypes.split(' ')]) {
    const { constraints = [], elements = [] } = typeDefinition(type) ?? {}
    for (const { key, severity, expression } of [
      ...constraints,
      ...elements.flatMap((element) => element.constraints ?? []),
    ]) {
      if (severity !== 'error') continue
      const name = `${key} ${expression}`
      all.set(name, (all.get(name) ?? new Set()).add(`${key} ${type}`))
    }
  }
  return all
}

function fill(template: unknown, members: object): unknown {
  if (Array.isArray(template)) return template.map((item) => fill(item, members))
  if (!isObject(template)) return template
  const own = isObject(template.$) ? { ...template.$, ...members } : template
  const entries = Object.entries(own).filter(([, value]) => value !== null)
  return Object.fromEntries(
    own === template ? entries.map(([name, value]) => [name, fill(value, members)]) : entries,
  )
}

t.test('reports each invariant exactly where it is violated', async (t) => {
  const text = await readFile(new URL('../../data/invariants.jsonl', import.meta.url), 'utf8')
  const templates = new Map<string, object>()
  const known = new Map<string, 'tried' | 'left out'>()
  for (const line of text.trim().split('\n')) {
    const [first, second, third, fourth] = JSON.parse(line) as Line
    if (typeof second === 'object') {
      templates.set(first, second)
      continue
    }
    const [type = ''] = second.split(/[. ]/)
    known.set(`${first} ${type}`, fourth === undefined ? 'left out' : 'tried')
    if (typeof third !== 'object' || fourth === undefined) continue
    const template = aTemplate(second, templates)
    const broken = listIssues(fill(template, third))
    t.ok(
      broken.every(({ code }) => code === 'invariant'),
      `${line}: ${broken.map(({ details }) => details.text)}`,
    )
    t.ok(
      broken.some(({ details }) => details.text.startsWith(`Constraint ${first} not met`)),
      line,
    )
    t.same(listIssues(fill(template, fourth)), [], line)
  }
  const published = [...publishedInvariants()]
  const findState = (keys: Set<string>) => [...keys].map((key) => known.get(key)).find(Boolean)
  t.same(
    published.filter(([, keys]) => findState(keys) === undefined).map(([name]) => name),
    [],
  )
  const tried = published.filter(([, keys]) => findState(keys) === 'tried').length
  t.equal(`${tried} of ${published.length}`, '200 of 206')
})

function aTemplate(place: string, templates: ReadonlyMap<string, object>): object {
  const found = templates.get(place)
  if (found !== undefined) return found
  const end = place.lastIndexOf('.')
  if (end === -1) throw new Error(`No template for ${place}`)
  return aTemplate(place.slice(0, end), templates)
}

function listIssues(resource: unknown) {
  const issues = validate(resource as Resource, { strict: true, thorough: true })
  return issues.filter(({ severity }) => severity === 'error')
}
