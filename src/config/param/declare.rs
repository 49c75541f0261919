//! The macro `params!`; [`super`] shows the whole form.

/// Declares the parameters of a section; the module [`param`](crate::config::param) shows the whole form.
#[macro_export]
macro_rules! params {
    // struct, then `argument`, then blocks
    (
        $(#[doc = $doc:literal])*
        $visibility:vis struct $name:ident { $($fields:tt)* }
        argument $argument:ident : $argument_type:ty $(= $argument_default:literal)? ;
        $($block:ident { $($body:tt)* })*
    ) => {
        $crate::params! { @build
            [$($doc)*] [$visibility] $name { $($fields)* }
            [$argument [$argument_type] [$($argument_default)?]]
            $($block { $($body)* })*
        }
    };
    // struct, then blocks
    (
        $(#[doc = $doc:literal])*
        $visibility:vis struct $name:ident { $($fields:tt)* }
        $($block:ident { $($body:tt)* })*
    ) => {
        $crate::params! { @build
            [$($doc)*] [$visibility] $name { $($fields)* } []
            $($block { $($body)* })*
        }
    };

    (@build
        [$($doc:literal)*] [$visibility:vis] $name:ident {
            $(
                $(#[doc = $field_doc:literal])*
                $(#[section $($section:tt)*])?
                $(#[key($key:literal)])?
                $field:ident : $type:ty $(= $default:literal)?
            ),* $(,)?
        }
        [$($argument:ident [$argument_type:ty] [$($argument_default:literal)?])?]
        $($block:ident { $($body:tt)* })*
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug)]
        $visibility struct $name {
            $($(#[doc = $field_doc])* pub $field: $type,)*
            $(/// The text after the section's name.
            pub $argument: $argument_type,)?
            /// Where the section stands.
            #[allow(dead_code, reason = "kept for faults found later; not every section has some")]
            pub span: $crate::config::Span,
        }

        #[allow(dead_code, reason = "not every section is read by its concrete type")]
        impl $name {
            /// What the section holds.
            pub const SPEC: $crate::config::SectionSpec = $crate::config::SectionSpec {
                doc: &[$($doc),*],
                argument: $crate::params!(@argument $($argument [$argument_type] [$($argument_default)?])?),
                params: &[$($crate::params!(@param_spec
                    [$([section $($section)*])?] [$($key)?] $field [$type] [$($default)?] [$($field_doc)*]
                )),*],
                sections: &[$($crate::params!(@section_spec
                    [$([section $($section)*])?] [$($key)?] $field [$type] [$($field_doc)*]
                )),*],
                rules: &[$($crate::params!(@block $block { $($body)* })),*],
                free_form: false,
            };

            /// Reads the section; every fault goes to the diagnostics.
            pub fn from_element(
                element: &$crate::config::Element,
                diagnostics: &mut $crate::config::Diagnostics,
            ) -> Option<Self> {
                const SPEC: &$crate::config::SectionSpec = &<$name>::SPEC;
                #[allow(unused_mut, reason = "a section without fields reads nothing")]
                let mut reader = $crate::config::param::SectionReader::new(element, SPEC, diagnostics);
                $(let $argument: Option<$argument_type> = reader.argument();)?
                $(let $field: Option<$type> = $crate::params!(@read
                    reader [$([section $($section)*])?] [$($key)?] $field
                );)*
                reader.finish();
                Some(Self {
                    $($argument: $argument?,)?
                    $($field: $field?,)*
                    span: element.span.clone(),
                })
            }
        }

        impl $crate::config::FromSection for $name {
            const SPEC: $crate::config::SectionSpec = <$name>::SPEC;

            fn from_element(
                element: &$crate::config::Element,
                diagnostics: &mut $crate::config::Diagnostics,
            ) -> Option<Self> {
                <$name>::from_element(element, diagnostics)
            }
        }
    };

    (@key [] $field:ident) => { $crate::config::param::field_name(stringify!($field)) };
    (@key [$key:literal] $field:ident) => { $key };

    (@default) => { None };
    (@default $default:literal) => { Some($default) };

    (@argument) => { None };
    (@argument $argument:ident [$type:ty] [$($default:literal)?]) => {
        Some($crate::params!(@spec [] $argument [$type] [$($default)?] []))
    };

    (@spec [$($key:literal)?] $field:ident [$type:ty] [$($default:literal)?] [$($doc:literal)*]) => {
        $crate::config::ParamSpec {
            name: $crate::params!(@key [$($key)?] $field),
            field: $crate::config::param::field_name(stringify!($field)),
            type_name: <$type as $crate::config::FromConfig>::TYPE_NAME,
            choices: <$type as $crate::config::FromConfig>::CHOICES,
            default: $crate::params!(@default $($default)?),
            required: $crate::config::param::is_required::<$type>($crate::params!(@default $($default)?)),
            secret: <$type as $crate::config::FromConfig>::SECRET,
            doc: &[$($doc),*],
            check: $crate::config::param::check_text::<$type>,
        }
    };

    (@param_spec [[section $($how:tt)*]] $($rest:tt)*) => { &[] };
    (@param_spec [] $($rest:tt)*) => { &[$crate::params!(@spec $($rest)*)] };

    (@section_spec [] $($rest:tt)*) => { &[] };
    (@section_spec [[section $($how:tt)*]] [$($key:literal)?] $field:ident [$type:ty] [$($doc:literal)*]) => {
        &[$crate::config::SubsectionSpec {
            name: $crate::params!(@key [$($key)?] $field),
            doc: &[$($doc),*],
            required: <$type as $crate::config::SectionField>::REQUIRED
                && !$crate::params!(@is_init $($how)*),
            multi: <$type as $crate::config::SectionField>::MULTI,
            spec: <$type as $crate::config::SectionField>::SPEC,
        }]
    };

    (@is_init) => { false };
    (@is_init (init)) => { true };

    (@read $reader:ident [] [$($key:literal)?] $field:ident) => {
        $reader.param($crate::config::param::field_name(stringify!($field)))
    };
    (@read $reader:ident [[section $($how:tt)*]] [$($key:literal)?] $field:ident) => {
        $reader.section($crate::params!(@key [$($key)?] $field), $crate::params!(@is_init $($how)*))
    };

    (@block alias { $($old:tt => $field:ident),* $(,)? }) => {
        &[$($crate::config::NameRule {
            name: $crate::params!(@name $old),
            kind: $crate::config::RuleKind::Alias($crate::config::param::field_name(stringify!($field))),
        }),*]
    };
    (@block unbuilt { $($name:literal $(unless $($harmless:literal)|+)?),* $(,)? }) => {
        &[$($crate::config::NameRule {
            name: $name,
            kind: $crate::config::RuleKind::Unbuilt(&[$($($harmless),+)?]),
        }),*]
    };
    (@block inert { $($name:literal => $reason:literal),* $(,)? }) => {
        &[$($crate::config::NameRule { name: $name, kind: $crate::config::RuleKind::Inert($reason) }),*]
    };
    (@block removed { $($name:literal => $reason:literal),* $(,)? }) => {
        &[$($crate::config::NameRule { name: $name, kind: $crate::config::RuleKind::Removed($reason) }),*]
    };
    (@block deprecated { $($name:literal => $reason:literal),* $(,)? }) => {
        &[$($crate::config::NameRule { name: $name, kind: $crate::config::RuleKind::Deprecated($reason) }),*]
    };
    (@block foreign { $($name:literal),* $(,)? }) => {
        &[$($crate::config::NameRule {
            name: $name,
            kind: $crate::config::RuleKind::Foreign(true),
        }),*]
    };
    (@block foreign_parameters { $($name:literal),* $(,)? }) => {
        &[$($crate::config::NameRule {
            name: $name,
            kind: $crate::config::RuleKind::Foreign(false),
        }),*]
    };

    (@name $name:ident) => { stringify!($name) };
    (@name $name:literal) => { $name };
}
