/**
 * A search argument is a list of texts, so that it can be repeated; published queries give it a variable
 * that is one text. The standard lets a literal text stand for a list of one, but no variable
 * (https://spec.graphql.org/October2021/#sec-All-Variable-Usages-are-Allowed). Here it may.
 */
import {
  getNullableType,
  isInputObjectType,
  isListType,
  Kind,
  type OperationDefinitionNode,
  type ValidationContext,
  type ValidationRule,
  VariablesInAllowedPositionRule,
} from 'graphql'

export const variablePositions: ValidationRule = (context) => {
  const lenient: ValidationContext = Object.create(context, {
    getRecursiveVariableUsages: {
      value: (operation: OperationDefinitionNode) => usagesOf(context, operation),
    },
  })
  return VariablesInAllowedPositionRule(lenient)
}

function usagesOf(context: ValidationContext, operation: OperationDefinitionNode) {
  const isList = ({ kind }: { readonly kind: Kind }) => kind === Kind.LIST_TYPE
  const singles = new Set(
    operation.variableDefinitions?.flatMap(({ variable, type }) => {
      const inner = type.kind === Kind.NON_NULL_TYPE ? type.type : type
      return isList(inner) ? [] : [variable.name.value]
    }),
  )
  return context.getRecursiveVariableUsages(operation).map((usage) => {
    const type = getNullableType(usage.type)
    const isArgument = !isInputObjectType(usage.parentType)
    const isOneOfMany = isListType(type) && singles.has(usage.node.name.value)
    return isArgument && isOneOfMany ? { ...usage, type: getNullableType(type.ofType) } : usage
  })
}
