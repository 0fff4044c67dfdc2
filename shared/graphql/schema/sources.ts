/** How the fields of the schema get their values; the compiler reads it from the extensions of a field. */
import type { GraphQLField } from 'graphql'
import type { Child } from './elements.ts'

export type Source =
  /** A member of the object that the field stands on. */
  | { readonly kind: 'member'; readonly name: string }
  /** A repeating element, with its filters. */
  | { readonly kind: 'list'; readonly child: Child }
  /** The resource that a Reference points at. */
  | { readonly kind: 'reference' }
  | { readonly kind: 'read'; readonly type: string }
  | { readonly kind: 'search'; readonly type: string; readonly isConnection: boolean }
  /** Resources that refer to the one that the field stands on. */
  | { readonly kind: 'referring'; readonly type: string; readonly isConnection: boolean }
  /** The resource of an edge of a connection. */
  | { readonly kind: 'edge' }
  | { readonly kind: 'write'; readonly type: string; readonly action: WriteAction }

export type WriteAction = 'create' | 'update' | 'patch' | 'delete'

/** Arguments as graphql-js coerces them. */
export type Given = Readonly<Record<string, unknown>>

export function from(source: Source): { readonly extensions: { readonly source: Source } } {
  return { extensions: { source } }
}

/** Undefined for the fields by which a schema describes itself: graphql-js resolves them. */
export function sourceOf({ extensions }: GraphQLField<unknown, unknown>): Source | undefined {
  // Set by `from` alone.
  return extensions.source as Source | undefined
}
