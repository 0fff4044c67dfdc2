/** `CodeSystem/$lookup` and `$subsumes`: https://hl7.org/fhir/R4/codesystem-operations.html */
import { badRequest } from '../../core/errors.ts'
import { type Inputs, type Output, parametersReply } from '../../request/parameters.ts'
import {
  displayLanguages,
  preferredDisplay,
  SUPPLEMENTS,
  withSupplements,
} from '../../terminology/adjusted.ts'
import {
  CODE_INPUTS,
  definitionNotFound,
  fromCoding,
  type GivenCode,
  givenCodes,
  isFromSystem,
  requireCodeSource,
  requireOneForm,
  terminologyOperation,
} from '../../terminology/codes.ts'
import { type ConceptNode, propertyText } from '../../terminology/concept-index.ts'
import type { CodeSource } from '../../terminology/find.ts'

/** Errors: 404 for an unknown code or system. */
export const lookup = terminologyOperation(
  {
    name: 'lookup',
    type: 'CodeSystem',
    inputs: {
      ...CODE_INPUTS,
      ...SUPPLEMENTS,
      property: 'text*: Which properties',
      displayLanguage: 'text: de, for example',
    },
    text: { summary: 'Look up a code', answer: 'Parameters' },
  },
  async ({ call, inputs, terminology: found }) => {
    const terminology = await withSupplements(found, inputs)
    const [given] = givenCodes(inputs)
    const source = await requireCodeSource(call, terminology, given?.system, given?.version)
    const { concepts } = await source.list({ codes: [given?.code ?? ''], limit: 1 })
    const [node] = concepts
    if (node === undefined || given === undefined || !isFromSystem(source, given)) {
      throw definitionNotFound('Code', `${given?.code} of ${source.codeSystem.url}`)
    }
    const { codeSystem } = source
    const { language } = codeSystem
    const spoken = preferredDisplay(displayLanguages(call, inputs), { ...node, language })
    const named = new Set(inputs.texts('property'))
    const isWanted = (name: string) => named.size === 0 || named.has(name)
    return parametersReply([
      ['name', 'valueString', codeSystem.title ?? codeSystem.name ?? codeSystem.url],
      ['version', 'valueString', codeSystem.version],
      ['display', 'valueString', spoken ?? node.code],
      ...(isWanted('definition') ? definition(node) : []),
      ...(isWanted('designation') ? designations(node) : []),
      ...properties(node)
        .filter(({ name }) => isWanted(name))
        .map(({ output }) => output),
    ])
  },
)

function definition(node: ConceptNode): Output[] {
  return [['definition', 'valueString', node.definition]]
}

function designations({ designations: all }: ConceptNode): Output[] {
  return all.map(({ language, use, value }) => {
    const parts: Output[] = [
      ['language', 'valueCode', language],
      ['use', 'valueCoding', use],
      ['value', 'valueString', value],
    ]
    return ['designation', 'part', parts]
  })
}

function properties(node: ConceptNode): readonly { name: string; output: Output }[] {
  const property = (name: string, member: `value${string}`, value: unknown) => {
    const parts: Output[] = [
      ['code', 'valueCode', name],
      ['value', member, value],
    ]
    return { name, output: ['property', 'part', parts] as const }
  }
  return [
    ...node.parents.map((code) => property('parent', 'valueCode', code)),
    ...node.children.map((code) => property('child', 'valueCode', code)),
    ...node.properties.map((item) => {
      const isValue = (name: string) => name.startsWith('value')
      const member = (Object.keys(item).find(isValue) ?? 'valueString') as `value${string}`
      return property(item.code, member, item[member] ?? propertyText(item))
    }),
  ]
}

/** Errors: 400 for a code the system does not have, and for codes of several systems or versions. */
export const subsumes = terminologyOperation(
  {
    name: 'subsumes',
    type: 'CodeSystem',
    inputs: {
      codeA: 'text: One',
      codeB: 'text: The other',
      system: 'text: Of both',
      version: 'text: Of the system',
      codingA: 'object: One, with its system',
      codingB: 'object: The other, with its system',
    },
    text: { summary: 'Compare two codes', answer: 'Parameters' },
  },
  async ({ call, inputs, terminology }) => {
    const a = readGivenCode(inputs, 'A')
    const b = readGivenCode(inputs, 'B')
    const named = { system: inputs.text('system'), version: inputs.text('version') }
    const system = named.system ?? a.system ?? b.system
    const version = named.version ?? a.version ?? b.version
    const source = await requireCodeSource(call, terminology, system, version)
    if (![named, a, b].every((given) => isFromSystem(source, given))) {
      throw badRequest('Both codes must be of one system and version')
    }
    const codes = [await spelledCode(source, a), await spelledCode(source, b)] as const
    return parametersReply([['outcome', 'valueCode', await relation(source, ...codes)]])
  },
)

function readGivenCode(inputs: Inputs, which: 'A' | 'B'): GivenCode {
  requireOneForm(inputs, `code${which}`, `coding${which}`)
  const coding = inputs.object(`coding${which}`)
  if (coding !== undefined) return fromCoding(coding, `coding${which}`)
  const code = inputs.text(`code${which}`)
  if (code === undefined) throw badRequest(`Missing required parameter "code${which}"`)
  return { system: undefined, version: undefined, code, display: undefined }
}

/** Returns the code in the spelling of its system. Errors: 400 for an unknown one. */
async function spelledCode(source: CodeSource, { code }: GivenCode): Promise<string> {
  const { concepts } = await source.list({ codes: [code], limit: 1 })
  const [node] = concepts
  if (node === undefined) throw badRequest(`Unknown code: ${code}`)
  return node.code
}

/**
 * Hierarchies in which a child is not a special case of its parent. The properties `parent` and `child` have the meaning
 * of the hierarchy, too: https://hl7.org/fhir/R4/codesystem-hierarchy-meaning.html, codesystem-concept-properties.html
 */
const WITHOUT_SUBSUMPTION: ReadonlySet<string | undefined> = new Set(['part-of', 'grouped-by'])

async function relation(source: CodeSource, a: string, b: string): Promise<string> {
  if (a === b) return 'equivalent'
  if (WITHOUT_SUBSUMPTION.has(source.codeSystem.hierarchyMeaning)) return 'not-subsumed'
  const isBelow = async (code: string, root: string) => {
    const filters = [{ property: 'concept', op: 'is-a', value: root }]
    const { concepts } = await source.list({ codes: [code], filters, limit: 1 })
    return concepts.length > 0
  }
  const [below, above] = [await isBelow(b, a), await isBelow(a, b)]
  if (below && above) return 'equivalent'
  if (below) return 'subsumes'
  return above ? 'subsumed-by' : 'not-subsumed'
}
