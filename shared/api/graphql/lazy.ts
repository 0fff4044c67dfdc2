/**
 * graphql-js walks every field of every type when a schema is made, which here takes a second and a
 * hundred megabytes. So types show no fields until the gate is open, and the schema makes those that a
 * query names when it names them.
 */
import {
  GraphQLInputObjectType,
  type GraphQLInputObjectTypeConfig,
  type GraphQLNamedType,
  GraphQLObjectType,
  type GraphQLObjectTypeConfig,
  GraphQLSchema,
  type GraphQLSchemaConfig,
} from 'graphql'
import type { GraphqlContext } from './context.ts'

export interface Gate {
  isOpen: boolean
}

export type ObjectConfig = GraphQLObjectTypeConfig<unknown, GraphqlContext>

export class LazyObject extends GraphQLObjectType<unknown, GraphqlContext> {
  readonly #gate: Gate

  constructor(gate: Gate, config: ObjectConfig) {
    super(config)
    this.#gate = gate
  }

  override getFields(): ReturnType<GraphQLObjectType<unknown, GraphqlContext>['getFields']> {
    return this.#gate.isOpen ? super.getFields() : {}
  }
}

export class LazyInput extends GraphQLInputObjectType {
  readonly #gate: Gate

  constructor(gate: Gate, config: GraphQLInputObjectTypeConfig) {
    super(config)
    this.#gate = gate
  }

  override getFields(): ReturnType<GraphQLInputObjectType['getFields']> {
    return this.#gate.isOpen ? super.getFields() : {}
  }
}

/** Knows every type by name; `getTypeMap` has only those that were made already. */
export class LazySchema extends GraphQLSchema {
  readonly #find: (name: string) => GraphQLNamedType | undefined

  constructor(
    config: Readonly<GraphQLSchemaConfig>,
    find: (name: string) => GraphQLNamedType | undefined,
  ) {
    super(config)
    this.#find = find
  }

  override getType(name: string): GraphQLNamedType | undefined {
    return super.getType(name) ?? this.#find(name)
  }
}
