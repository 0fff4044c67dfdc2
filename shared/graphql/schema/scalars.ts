/** Scalars whose values keep their text: FHIR decimals carry their precision. */
import {
  GraphQLBoolean,
  GraphQLFloat,
  GraphQLID,
  GraphQLScalarType,
  GraphQLString,
  Kind,
} from 'graphql'
import { Decimal, isDecimal } from '../../fhir/json.ts'

/** The standard's Float, but 1.00 stays 1.00. */
export const Float = new GraphQLScalarType<unknown, unknown>({
  name: 'Float',
  ...(GraphQLFloat.description ? { description: GraphQLFloat.description } : {}),
  coerceOutputValue: (value) => (isDecimal(value) ? value : GraphQLFloat.coerceOutputValue(value)),
  coerceInputValue: (value) => (isDecimal(value) ? value : GraphQLFloat.coerceInputValue(value)),
  coerceInputLiteral: (node) => {
    const number = GraphQLFloat.coerceInputLiteral?.(node)
    const isOdd = node.kind === Kind.FLOAT && String(number) !== node.value
    return isOdd ? new Decimal(node.value) : number
  },
})

const NUMBERS: ReadonlySet<string> = new Set(['integer', 'positiveInt', 'unsignedInt', 'decimal'])

export function scalarOf(code: string): GraphQLScalarType {
  if (code === 'boolean') return GraphQLBoolean
  if (code === 'id') return GraphQLID
  return NUMBERS.has(code) ? Float : GraphQLString
}

/** Written as text in GraphQL, so that it can be a child filter. */
export function isText(code: string): boolean {
  return code !== 'boolean' && !NUMBERS.has(code)
}
